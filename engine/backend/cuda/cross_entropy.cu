// Softmax, cross entropy and its gradient: a block per row, which reads it for the maximum and the
// sum together (Milakov and Gimelshein 2018), and once more, from the cache, for the gradient. A
// block has 1024 threads, so that the rows that all blocks of an H200 work on at a time (264 of
// 100 KB for GPT-2 in 16 bit) fit into its 50 MB.
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

constexpr int kRowThreads = 1024;

// The sum of exp(x - max) over some x; NaN if one is.
struct ExpSum {
  float max = -INFINITY;
  float sum = 0.0F;
};
struct Merge {
  __device__ ExpSum operator()(ExpSum a, ExpSum b) const {
    if (a.max < b.max) return (*this)(b, a);
    if (b.sum != 0.0F) a.sum += b.sum * expf(b.max - a.max);
    return a;
  }
};

// The sum over a thread's logits of the row, which it reads eight at a time.
template <typename T>
__device__ ExpSum SumOf(const T* row, int64_t V_used) {
  ExpSum all;
  for (int64_t v = threadIdx.x * kOctet; v < V_used; v += kRowThreads * kOctet) {
    const Octet logits = LoadOctet(row, v, V_used);
    ExpSum octet;
    for (int j = 0; j < kOctet; ++j)
      if (v + j < V_used) octet.max = fmaxf(octet.max, logits[j]);
    const float base = octet.max == -INFINITY ? 0.0F : octet.max;
    for (int j = 0; j < kOctet; ++j)
      if (v + j < V_used) octet.sum += expf(logits[j] - base);
    all = Merge()(all, octet);
  }
  return all;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    RowKernel(double* losses, T* logits, const int32_t* targets, int64_t V, int64_t V_used,
              float grad_scale) {
  T* row = logits + blockIdx.x * V;
  const int32_t target = targets[blockIdx.x];
  const ExpSum own = SumOf(row, V_used);
  const float max = BlockReduce<kRowThreads>(own.max, Max());
  const float sum =
      BlockReduce<kRowThreads>(own.sum > 0.0F ? own.sum * expf(own.max - max) : own.sum, Plus());
  const float scale = grad_scale / sum;
  const float target_logit = ToFloat(row[target]);
  __syncthreads();  // All have read the target's logit.
  for (int64_t v = threadIdx.x * kOctet; v < V; v += kRowThreads * kOctet) {
    Octet values = LoadOctet(row, v, V_used);
    for (int j = 0; j < kOctet; ++j) {
      const float p = v + j < V_used ? expf(values[j] - max) * scale : 0.0F;
      values[j] = v + j == target ? p - grad_scale : p;
    }
    StoreOctet(row, v, V, values);
  }
  if (threadIdx.x == 0) losses[blockIdx.x] = log(static_cast<double>(sum)) + max - target_logit;
}

__global__ void MeanOfLosses(double* mean, const double* losses, int64_t N) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < N; i += kThreads)
    total += losses[i];
  total = BlockReduce(total, Plus());
  if (threadIdx.x == 0) *mean = total / static_cast<double>(N);
}

}  // namespace

int64_t LossWorkspaceBytes(int64_t N) {
  return N * static_cast<int64_t>(sizeof(double));
}

void CrossEntropyInPlace(double* loss, const View& logits, const int32_t* targets, int64_t N,
                         int64_t V, int64_t V_used, float grad_scale, void* workspace) {
  auto* losses = static_cast<double*>(workspace);
  if (N > 0) {
    Visit(logits.type, [&](auto type) {
      Launch(RowKernel<decltype(type)>, {static_cast<unsigned>(N), kRowThreads}, losses,
             Data<decltype(type)>(logits), targets, V, V_used, grad_scale);
    });
  }
  if (loss != nullptr) Launch(MeanOfLosses, {1, kThreads}, loss, losses, N);
}

}  // namespace dsat::engine::cuda
