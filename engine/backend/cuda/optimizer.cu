// Optimizer updates: one pass that reads and writes every state once.
#include <type_traits>

#include "engine/backend/cuda/octet.h"
#include "engine/backend/update_rules.h"

namespace dsat::engine::cuda {
namespace {

struct AtRandom {
  __device__ float operator()(float x, int64_t i) const {
    return __uint_as_float(RoundAtRandom(__float_as_uint(x), bits(i)));
  }
  RoundingBits bits;
};

// Chunks of the squares come to shared memory, where one thread adds them up in order.
__global__ void StepScaleKernel(StepScale* scale, const double* squares, int64_t rows, int64_t cols,
                                ClipSettings settings) {
  __shared__ double chunk[kThreads];
  const int64_t n = rows * cols;
  double sum = 0, row_sum = 0;
  int64_t col = 0;
  for (int64_t begin = 0; begin < n; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    if (i < n) chunk[threadIdx.x] = squares[i];
    __syncthreads();
    for (int64_t j = begin; threadIdx.x == 0 && j < n && j < begin + kThreads; ++j) {
      row_sum += chunk[j - begin];
      if (++col < cols) continue;
      sum += row_sum;
      row_sum = 0;
      col = 0;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *scale = StepScaleOf(sum, settings);
}

// Applies a rule of update_rules.h to every element, with the moments that are not nullptr.
// round(x, i) is what is stored of element i in the type of the parameter.
template <typename P, typename W, typename G, typename M, typename Rule, typename Round>
__global__ void UpdateKernel(P* param, W* master, const G* gradient, M* moment1, M* moment2,
                             int64_t n, const StepScale* scale, Rule rule, Round round) {
  if (Skips(scale)) return;
  const float grad_scale = GradScale(scale);
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    Octet grad = {}, m = {}, v = {}, weights = LoadOctet(master, i, n);
    if constexpr (Rule::kReadsGrad) grad = LoadOctet(gradient, i, n);
    if (moment1 != nullptr) m = LoadOctet(moment1, i, n);
    if (moment2 != nullptr) v = LoadOctet(moment2, i, n);
#pragma unroll
    for (int j = 0; j < kOctet; ++j)
      weights[j] = rule(grad[j] * grad_scale, weights[j], m[j], v[j]);
    if constexpr (Rule::kWritesMoments) {
      if (moment1 != nullptr) StoreOctet(moment1, i, n, m);
      if (moment2 != nullptr) StoreOctet(moment2, i, n, v);
    }
    Octet rounded;
#pragma unroll
    for (int j = 0; j < kOctet; ++j)
      rounded[j] = round(weights[j], i + j);
    StoreOctet(master, i, n, std::is_same_v<W, P> ? rounded : weights);
    StoreOctet(param, i, n, rounded);
  }
}

template <typename P, typename W, typename G, typename M, typename Op, typename Rule,
          typename Round = Nearest>
void LaunchUpdate(const Op& op, const Rule& rule, const Tensor& m, const Tensor& v,
                  const Round& round = {}) {
  const int64_t n = op.param.num_elems;
  Launch(UpdateKernel<P, W, G, M, Rule, Round>, {NumOctetBlocks(n), kThreads}, op.param, op.master,
         op.grad, m, v, n, op.scale, rule, round);
}

// Runs an update with an f32 master copy and f32 moments.
template <typename Op, typename Rule>
void Run(const Op& op, const Rule& rule, const Tensor& m, const Tensor& v = {}) {
  Visit(op.param.dtype, [&]<typename P>(P) {
    Visit(op.grad.dtype, [&]<typename G>(G) { LaunchUpdate<P, float, G, float>(op, rule, m, v); });
  });
}

template <typename G>
__global__ void LambMomentsKernel(double* parts, const float* master, const G* gradient,
                                  float* moment1, float* moment2, int64_t num_elems,
                                  const StepScale* scale, LambMomentsRule rule) {
  const int64_t n = Skips(scale) ? 0 : num_elems;
  const float grad_scale = GradScale(scale);
  double params = 0, directions = 0;
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    const Octet grad = LoadOctet(gradient, i, n), before = LoadOctet(master, i, n);
    Octet m = LoadOctet(moment1, i, n), v = LoadOctet(moment2, i, n);
#pragma unroll
    for (int j = 0; j < kOctet; ++j) {
      const double direction = rule(grad[j] * grad_scale, before[j], m[j], v[j]);
      if (i + j >= n) continue;  // There, 0 / (0 + eps) need not be 0.
      const double param = before[j];
      params += param * param;
      directions += direction * direction;
    }
    StoreOctet(moment1, i, n, m);
    StoreOctet(moment2, i, n, v);
  }
  params = BlockReduce(params, Plus());
  directions = BlockReduce(directions, Plus());
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = params;
  parts[gridDim.x + blockIdx.x] = directions;
}

__global__ void SumPairsKernel(double* sums, const double* parts, int num_parts) {
  const double total = SumParts(parts + blockIdx.x * num_parts, num_parts);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

template <typename G>
__global__ void MomentumKernel(float* m, const G* grad, int64_t n, float beta1,
                               const StepScale* scale) {
  if (Skips(scale)) return;
  const float take = (1.0F - beta1) * GradScale(scale);
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    Octet mean = LoadOctet(m, i, n);
    const Octet g = LoadOctet(grad, i, n);
    for (int j = 0; j < kOctet; ++j)
      mean[j] = beta1 * mean[j] + take * g[j];
    StoreOctet(m, i, n, mean);
  }
}

}  // namespace

template <>
void RunOp(const op::FindStepScale& op, CudaWorkspace&) {
  Launch(StepScaleKernel, {1, kThreads}, op.scale, op.squares, op.rows, op.cols, op.settings);
}

template <>
void RunOp(const op::AdamStep& op, CudaWorkspace&) {
  using B = __nv_bfloat16;
  const AdamRule rule(op);
  const bool has_copy = op.master.dtype == DType::kF32;
  if (has_copy && !op.rounding) return Run(op, rule, op.m, op.v);
  if (has_copy) {
    return Visit(op.grad.dtype, [&]<typename G>(G) {
      LaunchUpdate<B, float, G, float>(op, rule, op.m, op.v, AtRandom{*op.rounding});
    });
  }
  const auto run = [&](const auto& round) {
    op.m.dtype == DType::kF32 ? LaunchUpdate<B, B, B, float>(op, rule, op.m, op.v, round)
                              : LaunchUpdate<B, B, B, B>(op, rule, op.m, op.v, round);
  };
  op.rounding ? run(AtRandom{*op.rounding}) : run(Nearest());
}

template <>
void RunOp(const op::SgdStep& op, CudaWorkspace&) {
  Run(op, SgdRule(op), op.momentum == 0 ? Tensor{} : op.momentum_buffer);
}

template <>
void RunOp(const op::AdagradStep& op, CudaWorkspace&) {
  Run(op, AdagradRule(op), op.sum);
}

template <>
void RunOp(const op::LionStep& op, CudaWorkspace&) {
  Run(op, LionRule(op), op.m);
}

template <>
void RunOp(const op::LambMoments& op, CudaWorkspace& workspace) {
  constexpr int64_t kPartBytes = 2 * kSumWorkspaceBytes;
  auto* parts = static_cast<double*>(workspace.Get(kPartBytes + int64_t{sizeof(LambSums)}));
  double* sums = parts + kPartBytes / sizeof(double);
  const int num_parts = NumSumBlocks(op.param.num_elems);
  Visit(op.grad.dtype, [&]<typename G>(G) {
    Launch(LambMomentsKernel<G>, {num_parts, kThreads}, parts, op.master, op.grad, op.m, op.v,
           op.param.num_elems, op.scale, LambMomentsRule(op));
  });
  Launch(SumPairsKernel, {2, kThreads}, sums, parts, num_parts);
  workspace.stream().Download(op.sums, sums, sizeof(LambSums));
}

template <>
void RunOp(const op::LambApply& op, CudaWorkspace&) {
  Run(op, LambRule(op), op.m, op.v);
}

template <>
void RunOp(const op::MomentumStep& op, CudaWorkspace&) {
  const int64_t n = op.m.num_elems;
  Visit(op.grad.dtype, [&]<typename G>(G) {
    Launch(MomentumKernel<G>, {NumOctetBlocks(n), kThreads}, op.m, op.grad, n, op.beta1, op.scale);
  });
}

template <>
void RunOp(const op::FrozenAdamStep& op, CudaWorkspace&) {
  Run(op, FrozenAdamRule(op), op.m, op.v);
}

}  // namespace dsat::engine::cuda
