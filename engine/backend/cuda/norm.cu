// Layer norm and RMS norm. Rows are held in registers, so that memory is read once and many reads
// are under way: forward by a warp for each, backward four by a block. What does not fit there is
// read again from the cache. Sums over deviations from a mean that is known are exact where sums of
// squares are not.
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

constexpr int kRowsAtOnce = kThreads / kWarp;  // Rows of a block, a warp for each.

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

// A lane's part of a row: the first octets in registers, the rest in memory.
template <bool kWhole, typename T>
struct LaneRow {
  static constexpr int kHeld = 16 / sizeof(T);
  const T* data;
  int64_t C;
  PackedOctet<T> held[kHeld];

  __device__ LaneRow(const T* row, int64_t C) : data(row), C(C) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      held[k] = LoadPacked<kWhole>(data, FirstColumn() + k * kColumnStride, C);
  }
  // Calls fn(column, octet) for each octet.
  template <typename Fn>
  __device__ void ForEach(const Fn& fn) const {
    int64_t c = FirstColumn();
#pragma unroll
    for (int k = 0; k < kHeld; ++k, c += kColumnStride)
      if (c < C) fn(c, Unpack(held[k]));
    for (; c < C; c += kColumnStride)
      fn(c, LoadOctet<kWhole>(data, c, C));
  }
};

template <bool kWhole, typename T>
__global__ void ForwardKernel(T* y, float* mean, float* rstd, const T* x, const T* weight,
                              const T* bias, int64_t N, int64_t C, float eps) {
  const int64_t row = WarpRow();
  if (row >= N) return;
  const LaneRow<kWhole, T> in(x + row * C, C);
  float m = 0.0F, squares = 0.0F;
  if (mean != nullptr) {
    float sum = 0.0F;
    in.ForEach([&](int64_t, const Octet& values) {
      for (const float value : values.x)
        sum += value;
    });
    m = WarpReduce(sum, Plus()) / static_cast<float>(C);
  }
  in.ForEach([&](int64_t c, const Octet& values) {
    for (int j = 0; j < kOctet; ++j) {
      const float centered = kWhole || c + j < C ? values[j] - m : 0.0F;
      squares += centered * centered;
    }
  });
  const float r = 1.0F / sqrtf(WarpReduce(squares, Plus()) / static_cast<float>(C) + eps);
  in.ForEach([&](int64_t c, Octet values) {
    const Octet w = LoadOctet<kWhole>(weight, c, C);
    Octet b = {};
    if (bias != nullptr) b = LoadOctet<kWhole>(bias, c, C);
    for (int j = 0; j < kOctet; ++j)
      values[j] = (values[j] - m) * r * w[j] + b[j];
    StoreOctet<kWhole>(y + row * C, c, C, values);
  });
  if (threadIdx.x % kWarp != 0) return;
  if (mean != nullptr) mean[row] = m;
  rstd[row] = r;
}

// The threads and columns that a block has at most whose rows are held.
constexpr int kMostThreads = 512;
constexpr int64_t kMostHeldColumns = kMostThreads * kOctet;

// An octet of each of the rows; zeros where the columns or the rows end.
template <bool kWhole, typename T>
struct HeldRows {
  static constexpr int kRows = 8 / sizeof(T);  // Rows that a block holds at once.
  PackedOctet<T> octets[kRows];

  __device__ HeldRows(const T* data, int64_t first, int64_t num_rows, int64_t C) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t columns = i < num_rows ? C : 0;
      octets[i] = LoadPacked<kWhole>(data + (first + i) * C, threadIdx.x * kOctet, columns);
    }
  }
  __device__ Octet operator[](int i) const {
    return Unpack(octets[i]);
  }
  // Makes the compiler unpack them once more from here on, so that no registers are taken by what
  // it has unpacked before.
  __device__ void Forget() {
    for (PackedOctet<T>& octet : octets) {
      for (uint4& words : octet.words)
        asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
    }
  }
};

// Replaces each of the numbers by its sum over the block, in an order that only the number of
// threads decides. All threads must call it.
template <int kNumbers>
__device__ void SumOverBlock(float (&numbers)[kNumbers]) {
  __shared__ float parts[kMostThreads / kWarp][kNumbers];
  for (float& number : numbers)
    number = WarpReduce(number, Plus());
  __syncthreads();  // All threads have read the sums of the call before.
  if (threadIdx.x % kWarp == 0) {
    for (int i = 0; i < kNumbers; ++i)
      parts[threadIdx.x / kWarp][i] = numbers[i];
  }
  __syncthreads();
  for (int i = 0; i < kNumbers; ++i) {
    numbers[i] = 0.0F;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp)
      numbers[i] += parts[warp][i];
  }
}

unsigned HeldThreads(int64_t C) {
  constexpr int64_t kColumns = kWarp * kOctet;
  return static_cast<unsigned>((C + kColumns - 1) / kColumns * kWarp);
}

// Blocks, which divide the rows: as many as the 132 multiprocessors of an H200 run at once, on
// every device, so that all sum alike.
int64_t NumParts(int64_t N, int64_t C) {
  constexpr int64_t kMultiprocessors = 132, kLeastRows = 4;
  constexpr unsigned kLeastThreads = 128;  // With fewer, adding up the parts would take longest.
  const int64_t most = kMultiprocessors * (kMostThreads / std::max(kLeastThreads, HeldThreads(C)));
  return std::min(most, (N + kLeastRows - 1) / kLeastRows);
}

// dx, and a part's sums of the gradients of weight and bias, partial (parts, C, 2). dx may be dy.
template <bool kWhole, typename T>
__global__ void __launch_bounds__(kMostThreads)
    BackwardKernel(T* dx, float2* partial, const T* dy, Rows<T> rows, int64_t N, bool accumulate) {
  using Held = HeldRows<kWhole, T>;
  constexpr int kRows = Held::kRows;
  const int64_t C = rows.C, part_rows = (N + gridDim.x - 1) / gridDim.x;
  const int64_t begin = blockIdx.x * part_rows, end = min(N, begin + part_rows);
  const int64_t c = threadIdx.x * kOctet;
  const PackedOctet<T> weight = LoadPacked<kWhole>(rows.weight, c, C);
  float2 sums[kOctet] = {};
  for (int64_t first = begin; first < end; first += kRows) {
    const int64_t num_rows = end - first;
    Held grads(dy, first, num_rows, C), in(rows.x, first, num_rows, C);
    const Held before(dx, first, accumulate ? num_rows : 0, C);
    float m[kRows] = {}, r[kRows] = {};
    float means[2 * kRows] = {};  // The means of dy * weight, then of dy * weight * normalized x.
    for (int i = 0; i < kRows; ++i) {
      if (i < num_rows) {
        if (rows.mean != nullptr) m[i] = rows.mean[first + i];
        r[i] = rows.rstd[first + i];
      }
      const Octet g = grads[i], values = in[i], w = Unpack(weight);
      for (int j = 0; j < kOctet; ++j) {
        const float normed = (values[j] - m[i]) * r[i];
        means[2 * i] += g[j] * w[j];
        means[2 * i + 1] += g[j] * w[j] * normed;
        sums[j].x += g[j] * normed;
        sums[j].y += g[j];
      }
    }
    SumOverBlock(means);
    grads.Forget();
    in.Forget();
    for (int i = 0; i < kRows && i < num_rows; ++i) {
      const float mean = rows.mean == nullptr ? 0.0F : means[2 * i] / static_cast<float>(C);
      const float mean_normed = means[2 * i + 1] / static_cast<float>(C);
      const Octet g = grads[i], values = in[i], w = Unpack(weight);
      Octet grad = before[i];
      for (int j = 0; j < kOctet; ++j)
        grad[j] += (g[j] * w[j] - mean - (values[j] - m[i]) * r[i] * mean_normed) * r[i];
      StoreOctet<kWhole>(dx + (first + i) * C, c, C, grad);
    }
  }
  for (int j = 0; j < kOctet; ++j)
    if (kWhole ? c < C : c + j < C) partial[blockIdx.x * C + c + j] = sums[j];
}

template <typename T>
__global__ void WideInputGradKernel(T* dx, const T* dy, Rows<T> rows, int64_t N, bool accumulate) {
  const int64_t row = WarpRow(), C = rows.C;
  if (row >= N) return;
  const T *grad = dy + row * C, *in = rows.x + row * C;
  const float m = rows.mean == nullptr ? 0.0F : rows.mean[row];
  const float r = rows.rstd[row];
  float mean = 0.0F, mean_normed = 0.0F;
  for (int64_t c = FirstColumn(); c < C; c += kColumnStride) {
    const Octet g = LoadOctet(grad, c, C), w = LoadOctet(rows.weight, c, C);
    const Octet values = LoadOctet(in, c, C);
    for (int j = 0; j < kOctet; ++j) {
      mean += g[j] * w[j];
      mean_normed += g[j] * w[j] * (values[j] - m) * r;
    }
  }
  mean = rows.mean == nullptr ? 0.0F : WarpReduce(mean, Plus()) / static_cast<float>(C);
  mean_normed = WarpReduce(mean_normed, Plus()) / static_cast<float>(C);
  for (int64_t c = FirstColumn(); c < C; c += kColumnStride) {
    const Octet g = LoadOctet(grad, c, C), w = LoadOctet(rows.weight, c, C);
    const Octet values = LoadOctet(in, c, C);
    Octet sum = {};
    if (accumulate) sum = LoadOctet(dx + row * C, c, C);
    for (int j = 0; j < kOctet; ++j)
      sum[j] += (g[j] * w[j] - mean - (values[j] - m) * r * mean_normed) * r;
    StoreOctet(dx + row * C, c, C, sum);
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

// RMS norm has no mean and no bias.
template <typename Op>
void Forward(const Op& op, float eps) {
  Tensor mean, bias;
  if constexpr (requires { op.mean; }) {
    mean = op.mean;
    bias = op.bias;
  }
  Visit(op.x.dtype, [&]<typename T>(T) {
    T *y = Data<T>(op.y), *x = Data<T>(op.x), *w = Data<T>(op.weight), *b = Data<T>(bias);
    const auto kernel =
        AreWhole(op.C, y, x, w, b) ? ForwardKernel<true, T> : ForwardKernel<false, T>;
    Launch(kernel, {RowBlocks(op.N), kThreads}, y, mean, op.rstd, x, w, b, op.N, op.C, eps);
  });
}

template <typename Op>
void Backward(const Op& op, CudaWorkspace& workspace) {
  Tensor mean, dbias;
  if constexpr (requires { op.mean; }) {
    mean = op.mean;
    dbias = op.dbias;
  }
  Visit(op.x.dtype, [&]<typename T>(T) {
    const Rows<T> rows{Data<T>(op.x), Data<T>(op.weight), Data<float>(mean), Data<float>(op.rstd),
                       op.C};
    T *dx = Data<T>(op.dx), *dy = Data<T>(op.dy);
    if (op.C <= kMostHeldColumns) {
      const int64_t parts = NumParts(op.N, op.C);
      auto* partial = static_cast<float2*>(workspace.Get(parts * op.C * int64_t{sizeof(float2)}));
      const auto kernel = AreWhole(op.C, dx, dy, rows.x, rows.weight) ? BackwardKernel<true, T>
                                                                      : BackwardKernel<false, T>;
      Launch(kernel, {static_cast<unsigned>(parts), HeldThreads(op.C)}, dx, partial, dy, rows, op.N,
             op.accumulate_dx);
      return AddPartialSums<T>(op.dweight, dbias, partial, parts, op.C);
    }
    // First: dx may take dy's place.
    SumColumns<T>(op.dweight, dbias, op.N, op.C, ParamGrads<T>{rows, dy}, workspace);
    Launch(WideInputGradKernel<T>, {RowBlocks(op.N), kThreads}, dx, dy, rows, op.N,
           op.accumulate_dx);
  });
}

}  // namespace

template <>
void RunOp(const op::LayerNormForward& op, CudaWorkspace&) {
  Forward(op, kNormEpsilon);
}

template <>
void RunOp(const op::RmsNormForward& op, CudaWorkspace&) {
  Forward(op, op.eps);
}

template <>
void RunOp(const op::LayerNormBackward& op, CudaWorkspace& workspace) {
  Backward(op, workspace);
}

template <>
void RunOp(const op::RmsNormBackward& op, CudaWorkspace& workspace) {
  Backward(op, workspace);
}

}  // namespace dsat::engine::cuda
