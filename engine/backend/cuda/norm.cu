// Layer norm and RMS norm: a warp per row, which it reads again from the first-level cache: sums
// over deviations from a mean that is known are exact where sums of squares are not.
#include "engine/backend/cuda/column_sums.h"
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

// One row's numbers: x normalized is (x - mean) * rstd, with mean 0 for RMS norm.
template <typename T>
struct Rows {
  const T* x;
  const T* weight;
  const float* mean;  // nullptr: RMS norm.
  const float* rstd;
  int64_t C;

  __device__ float Normed(int64_t row, int64_t c) const {
    const float m = mean == nullptr ? 0.0F : mean[row];
    return (ToFloat(x[row * C + c]) - m) * rstd[row];
  }
};

constexpr int kRowsAtOnce = kThreads / kWarp;  // Of a block.

__device__ int64_t WarpRow() {
  return int64_t{blockIdx.x} * kRowsAtOnce + threadIdx.x / kWarp;
}
unsigned RowBlocks(int64_t N) {
  return static_cast<unsigned>((N + kRowsAtOnce - 1) / kRowsAtOnce);
}
// A lane's octets of a row.
__device__ int FirstColumn() {
  return static_cast<int>(threadIdx.x) % kWarp * kOctet;
}
constexpr int kColumnStride = kWarp * kOctet;

template <typename T>
__global__ void ForwardKernel(T* y, float* mean, float* rstd, const T* x, const T* weight,
                              const T* bias, int64_t N, int64_t C, float eps) {
  const int64_t row = WarpRow();
  if (row >= N) return;
  const T* in = x + row * C;
  float m = 0.0F;
  if (mean != nullptr) {
    float sum = 0.0F;
    for (int64_t c = FirstColumn(); c < C; c += kColumnStride) {
      for (const float value : LoadOctet(in, c, C).x)
        sum += value;
    }
    m = WarpReduce(sum, Plus()) / static_cast<float>(C);
  }
  float squares = 0.0F;
  for (int64_t c = FirstColumn(); c < C; c += kColumnStride) {
    const Octet values = LoadOctet(in, c, C);
    for (int j = 0; j < kOctet; ++j) {
      const float centered = c + j < C ? values[j] - m : 0.0F;
      squares += centered * centered;
    }
  }
  squares = WarpReduce(squares, Plus());
  const float r = 1.0F / sqrtf(squares / static_cast<float>(C) + eps);
  for (int64_t c = FirstColumn(); c < C; c += kColumnStride) {
    Octet values = LoadOctet(in, c, C);
    const Octet w = LoadOctet(weight, c, C);
    Octet b = {};
    if (bias != nullptr) b = LoadOctet(bias, c, C);
    for (int j = 0; j < kOctet; ++j)
      values[j] = (values[j] - m) * r * w[j] + b[j];
    StoreOctet(y + row * C, c, C, values);
  }
  if (threadIdx.x % kWarp != 0) return;
  if (mean != nullptr) mean[row] = m;
  rstd[row] = r;
}

// The means over a row of dy * weight, 0 for RMS norm, and of that times x normalized. A lane's
// part of a warp's work.
template <typename T>
__device__ float2 RowMeans(const T* dy, const Rows<T>& rows, int64_t row) {
  const int64_t C = rows.C;
  const T *grad = dy + row * C, *in = rows.x + row * C;
  const float m = rows.mean == nullptr ? 0.0F : rows.mean[row];
  const float r = rows.rstd[row];
  float sum = 0.0F, sum_norm = 0.0F;
  for (int64_t c = FirstColumn(); c < C; c += kColumnStride) {
    const Octet g = LoadOctet(grad, c, C), w = LoadOctet(rows.weight, c, C);
    const Octet values = LoadOctet(in, c, C);
    for (int j = 0; j < kOctet; ++j) {
      const float dnorm = g[j] * w[j];
      sum += dnorm;
      sum_norm += dnorm * (values[j] - m) * r;
    }
  }
  const float count = static_cast<float>(C);
  return {rows.mean == nullptr ? 0.0F : WarpReduce(sum, Plus()) / count,
          WarpReduce(sum_norm, Plus()) / count};
}

// An octet of dx, at column c; returns that of x normalized.
template <typename T>
__device__ Octet GiveInputGrad(T* dx, const Octet& g, const Octet& w, const Rows<T>& rows,
                               int64_t row, int64_t c, float2 means, bool accumulate) {
  const int64_t C = rows.C;
  const float m = rows.mean == nullptr ? 0.0F : rows.mean[row];
  const float r = rows.rstd[row];
  Octet normed = LoadOctet(rows.x + row * C, c, C), grad = {};
  if (accumulate) grad = LoadOctet(dx + row * C, c, C);
  for (int j = 0; j < kOctet; ++j) {
    normed[j] = (normed[j] - m) * r;
    grad[j] += (g[j] * w[j] - means.x - normed[j] * means.y) * r;
  }
  StoreOctet(dx + row * C, c, C, grad);
  return normed;
}

template <typename T>
__global__ void InputGradKernel(T* dx, const T* dy, Rows<T> rows, int64_t N, bool accumulate) {
  const int64_t row = WarpRow(), C = rows.C;
  if (row >= N) return;
  const float2 means = RowMeans(dy, rows, row);
  for (int64_t c = FirstColumn(); c < C; c += kColumnStride) {
    const Octet g = LoadOctet(dy + row * C, c, C), w = LoadOctet(rows.weight, c, C);
    GiveInputGrad(dx, g, w, rows, row, c, means, accumulate);
  }
}

// Rows whose columns a block's threads divide among themselves, an octet each.
constexpr int64_t kMostSharedColumns = kThreads * kOctet;
// Blocks, which divide the rows: some three for each multiprocessor of an H200.
constexpr int64_t kMaxNormParts = 384;
int64_t NumNormParts(int64_t N) {
  return std::min(kMaxNormParts, (N + kRowsAtOnce - 1) / kRowsAtOnce);
}

// dx, and a part's sums of the gradients of weight and bias, partial (parts, C, 2). A warp reads a
// row for its means; then each thread does its columns of the block's rows, from the cache.
template <typename T>
__global__ void BackwardKernel(T* dx, float2* partial, const T* dy, Rows<T> rows, int64_t N,
                               bool accumulate) {
  __shared__ float2 means[kRowsAtOnce];
  const int64_t C = rows.C, part_rows = (N + gridDim.x - 1) / gridDim.x;
  const int64_t begin = blockIdx.x * part_rows, end = min(N, begin + part_rows);
  const int64_t c = threadIdx.x * kOctet;
  const Octet w = LoadOctet(rows.weight, c, C);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float2 sums[kOctet] = {};
  for (int64_t first = begin; first < end; first += kRowsAtOnce) {
    if (first + warp < end) {
      const float2 own = RowMeans(dy, rows, first + warp);
      if (threadIdx.x % kWarp == 0) means[warp] = own;
    }
    __syncthreads();
    for (int i = 0; c < C && i < kRowsAtOnce && first + i < end; ++i) {
      const int64_t row = first + i;
      const Octet g = LoadOctet(dy + row * C, c, C);
      const Octet normed = GiveInputGrad(dx, g, w, rows, row, c, means[i], accumulate);
      for (int j = 0; j < kOctet; ++j) {
        sums[j].x += g[j] * normed[j];
        sums[j].y += g[j];
      }
    }
    __syncthreads();
  }
  for (int j = 0; j < kOctet; ++j)
    if (c + j < C) partial[blockIdx.x * C + c + j] = sums[j];
}

template <typename T>
struct ParamGrads {
  Rows<T> rows;
  const T* dy;
  __device__ float2 operator()(int64_t row, int64_t c) const {
    const float g = ToFloat(dy[row * rows.C + c]);
    return {g * rows.Normed(row, c), g};
  }
};

}  // namespace

void NormForward(const NormArgs& args) {
  if (args.N == 0) return;
  Visit(args.x.type, [&](auto type) {
    using T = decltype(type);
    Launch(ForwardKernel<T>, {RowBlocks(args.N), kThreads}, Data<T>(args.y), args.mean.f32(),
           args.rstd.f32(), Data<T>(args.x), Data<T>(args.weight), Data<T>(args.bias), args.N,
           args.C, args.eps);
  });
}

int64_t NormWorkspaceBytes(int64_t N, int64_t C) {
  if (C > kMostSharedColumns) return ColumnWorkspaceBytes(N, C);
  return NumNormParts(N) * C * static_cast<int64_t>(sizeof(float2));
}

void NormBackward(const NormGradArgs& args, void* workspace) {
  if (args.N == 0) return;
  Visit(args.x.type, [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows{Data<T>(args.x), Data<T>(args.weight), args.mean.f32(), args.rstd.f32(),
                       args.C};
    T *dx = Data<T>(args.dx), *dy = Data<T>(args.dy);
    if (args.C <= kMostSharedColumns) {
      auto* partial = static_cast<float2*>(workspace);
      const int64_t parts = NumNormParts(args.N);
      Launch(BackwardKernel<T>, {static_cast<unsigned>(parts), kThreads}, dx, partial, dy, rows,
             args.N, args.accumulate_dx);
      return AddPartialSums<T>(args.dweight, args.dbias, partial, parts, args.C);
    }
    // First: dx may take dy's place.
    SumColumns<T>(args.dweight, args.dbias, args.N, args.C, ParamGrads<T>{rows, dy}, workspace);
    Launch(InputGradKernel<T>, {RowBlocks(args.N), kThreads}, dx, dy, rows, args.N,
           args.accumulate_dx);
  });
}

}  // namespace dsat::engine::cuda
