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

template <typename T>
__global__ void InputGradKernel(T* dx, const T* dy, Rows<T> rows, int64_t N, bool accumulate) {
  const int64_t row = WarpRow();
  if (row >= N) return;
  const int64_t C = rows.C;
  const T *grad = dy + row * C, *in = rows.x + row * C;
  const float m = rows.mean == nullptr ? 0.0F : rows.mean[row];
  const float r = rows.rstd[row];
  float sum = 0.0F;       // Of dy * weight,
  float sum_norm = 0.0F;  // and of that times x normalized.
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
  const float mean_dnorm = rows.mean == nullptr ? 0.0F : WarpReduce(sum, Plus()) / count;
  const float mean_norm = WarpReduce(sum_norm, Plus()) / count;
  for (int64_t c = FirstColumn(); c < C; c += kColumnStride) {
    Octet g = LoadOctet(grad, c, C);
    const Octet w = LoadOctet(rows.weight, c, C), values = LoadOctet(in, c, C);
    Octet before = {};
    if (accumulate) before = LoadOctet(dx + row * C, c, C);
    for (int j = 0; j < kOctet; ++j) {
      const float normed = (values[j] - m) * r;
      g[j] = before[j] + (g[j] * w[j] - mean_dnorm - normed * mean_norm) * r;
    }
    StoreOctet(dx + row * C, c, C, g);
  }
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

void NormBackward(const NormGradArgs& args, void* workspace) {
  if (args.N == 0) return;
  Visit(args.x.type, [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows{Data<T>(args.x), Data<T>(args.weight), args.mean.f32(), args.rstd.f32(),
                       args.C};
    // First: dx may take dy's place.
    SumColumns<T>(args.dweight, args.dbias, args.N, args.C, ParamGrads<T>{rows, Data<T>(args.dy)},
                  workspace);
    Launch(InputGradKernel<T>, {RowBlocks(args.N), kThreads}, Data<T>(args.dx), Data<T>(args.dy),
           rows, args.N, args.accumulate_dx);
  });
}

}  // namespace dsat::engine::cuda
