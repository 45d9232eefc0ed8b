// Softmax, cross entropy and its gradient: a block per row, which reads it for the maximum and the
// sum together (Milakov and Gimelshein 2018), and once more, from the cache, for the gradient.
// Three blocks share a multiprocessor: the rows that all blocks of an H200 work on at a time (396
// of 100 KB for GPT-2 in 16 bit) fit into its 50 MB.
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

constexpr int kRowThreads = 512, kRowsAtOnce = 3;

// The sum of exp(x - max) over some x; NaN if one is.
struct ExpSum {
  float max = -INFINITY;
  float sum = 0.0F;

  // exp(x - max).
  __device__ float Of(float x) const { return Exp2((x - max) * kLog2E); }

  // One more octet.
  __device__ void Add(const Octet& logits) {
    const float before = max;
    for (const float x : logits.x)
      max = fmaxf(max, x);
    if (max == -INFINITY) return AddNans(logits);
    if (sum != 0.0F) sum *= Of(before);
    for (const float x : logits.x)
      sum += Of(x);
  }

 private:
  // fmaxf has passed them over.
  __device__ void AddNans(const Octet& logits) {
    for (const float x : logits.x)
      if (x != x) sum = x;
  }
};

// The logits of an octet at v; -infinity from V_used on.
template <typename T>
__device__ Octet LogitsOf(const PackedOctet<T>& packed, int64_t v, int64_t V_used) {
  Octet logits = Unpack(packed);
  if (v + kOctet > V_used) {
    for (int j = 0; j < kOctet; ++j)
      if (v + j >= V_used) logits[j] = -INFINITY;
  }
  return logits;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowsAtOnce)
    RowKernel(double* losses, T* logits, const int32_t* targets, int64_t V, int64_t V_used,
              float grad_scale) {
  constexpr int kStride = kRowThreads * kOctet;
  T* row = logits + blockIdx.x * V;
  const int32_t target = targets[blockIdx.x];
  if (target == kIgnoredTarget) {
    for (int64_t v = threadIdx.x * kOctet; v < V; v += kStride)
      StoreOctet(row, v, V, Octet{});
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    return;
  }
  ExpSum all;
  for (int64_t v = threadIdx.x * kOctet; v < V_used; v += 2 * kStride) {
    const PackedOctet<T> first = LoadPacked(row, v, V_used);
    const PackedOctet<T> second = LoadPacked(row, v + kStride, V_used);
    all.Add(LogitsOf(first, v, V_used));
    all.Add(LogitsOf(second, v + kStride, V_used));
  }
  const float own_max = all.max;
  all.max = BlockReduce<kRowThreads>(own_max, Max());
  if (own_max > -INFINITY) all.sum *= all.Of(own_max);
  all.sum = BlockReduce<kRowThreads>(all.sum, Plus());
  const float scale = grad_scale / all.sum;
  const float target_logit = ToFloat(row[target]);
  __syncthreads();  // All have read the target's logit.
  for (int64_t v = threadIdx.x * kOctet; v < V; v += kStride) {
    Octet values = LogitsOf(LoadPacked(row, v, V_used), v, V_used);
    for (float& x : values.x)
      x = all.Of(x) * scale;
    StoreOctet(row, v, V, values);
  }
  __syncthreads();  // The target's gradient is written last.
  if (threadIdx.x != 0) return;
  row[target] = FromFloat<T>(all.Of(target_logit) * scale - grad_scale);
  losses[blockIdx.x] = log(static_cast<double>(all.sum)) + all.max - target_logit;
}

__global__ void MeanOfLosses(double* mean, const double* losses, int64_t N, double divisor) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < N; i += kThreads)
    total += losses[i];
  total = BlockReduce(total, Plus());
  if (threadIdx.x == 0) *mean = total / divisor;
}

}  // namespace

template <>
void RunOp(const op::CrossEntropyInPlace& op, CudaWorkspace& workspace) {
  auto* losses = static_cast<double*>(workspace.Get(op.N * int64_t{sizeof(double)}));
  Visit(op.logits.dtype, [&]<typename T>(T) {
    Launch(RowKernel<T>, {static_cast<unsigned>(op.N), kRowThreads}, losses, op.logits, op.targets,
           op.V, op.V_used, op.grad_scale);
  });
  if (op.loss != nullptr) Launch(MeanOfLosses, {1, kThreads}, op.loss, losses, op.N, op.Divisor());
}

}  // namespace dsat::engine::cuda
