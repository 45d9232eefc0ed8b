// Softmax, cross entropy and its gradient in one pass over the logits: a block per row.
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

template <typename T>
__global__ void RowKernel(double* losses, T* logits, const int32_t* targets, int64_t V,
                          int64_t V_used, float grad_scale) {
  T* row = logits + blockIdx.x * V;
  const int32_t target = targets[blockIdx.x];
  float max = -INFINITY;
  for (int64_t v = threadIdx.x; v < V_used; v += kThreads)
    max = fmaxf(max, ToFloat(row[v]));
  max = BlockReduce(max, Max());
  float sum = 0.0F;
  for (int64_t v = threadIdx.x; v < V_used; v += kThreads)
    sum += expf(ToFloat(row[v]) - max);
  sum = BlockReduce(sum, Plus());
  const float target_logit = ToFloat(row[target]);
  __syncthreads();  // All have read the target's logit.
  for (int64_t v = threadIdx.x; v < V; v += kThreads) {
    const float p = v < V_used ? expf(ToFloat(row[v]) - max) / sum : 0.0F;
    row[v] = FromFloat<T>((v == target ? p - 1.0F : p) * grad_scale);
  }
  if (threadIdx.x == 0) losses[blockIdx.x] = log(static_cast<double>(sum)) + max - target_logit;
}

__global__ void SumLosses(double* sum, const double* losses, int64_t N) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < N; i += kThreads)
    total += losses[i];
  total = BlockReduce(total, Plus());
  if (threadIdx.x == 0) *sum = total;
}

}  // namespace

int64_t LossWorkspaceBytes(int64_t N) {
  return N * static_cast<int64_t>(sizeof(double));
}

void CrossEntropyInPlace(double* sum, const View& logits, const int32_t* targets, int64_t N,
                         int64_t V, int64_t V_used, float grad_scale, void* workspace) {
  auto* losses = static_cast<double*>(workspace);
  if (N > 0) {
    Visit(logits.type, [&](auto type) {
      Launch(RowKernel<decltype(type)>, {static_cast<unsigned>(N), kThreads}, losses,
             Data<decltype(type)>(logits), targets, V, V_used, grad_scale);
    });
  }
  Launch(SumLosses, {1, kThreads}, sum, losses, N);
}

}  // namespace dsat::engine::cuda
