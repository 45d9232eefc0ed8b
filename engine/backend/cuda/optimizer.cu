// Optimizer updates: one pass that reads and writes every state once.
#include <cmath>
#include <type_traits>

#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

// The operands that every update has.
struct Update {
  Tensor param, master, grad;
  Tensor m, v;  // The moments; or momentum buffer, or sum of squares, in `m`.
  const StepScale* scale;
};
template <typename Op>
Update UpdateOf(const Op& op, const Tensor& m, const Tensor& v = {}) {
  return {op.param, op.master, op.grad, m, v, op.scale};
}
Update UpdateOf(const AdamArgs& args) {
  return UpdateOf(args, args.m, args.v);
}

// The states that an update reads and writes besides parameters: moments m and v, where they are
// not nullptr.
template <typename G, typename M = float>
struct States {
  M *m, *v;
  const G* grad;
};

// As StoreOctet rounds.
struct Nearest {
  __device__ float operator()(float x, int64_t) const { return x; }
};

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

__device__ bool Skips(const StepScale* scale) {
  return scale != nullptr && scale->skips != 0;
}
__device__ float GradScale(const StepScale* scale) {
  return scale == nullptr ? 1.0F : scale->grad_scale;
}

// step(gradient, master, m, v) for every element gives the new master. A Step says whether it reads
// the gradient and whether it writes the moments. round(x, i) is what is stored of element i in the
// type of the parameter.
template <typename P, typename W, typename G, typename M, typename Step, typename Round>
__global__ void UpdateKernel(P* param, W* master, States<G, M> states, int64_t n,
                             const StepScale* scale, Step step, Round round) {
  if (Skips(scale)) return;
  const float grad_scale = GradScale(scale);
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    Octet grad = {}, m = {}, v = {}, weights = LoadOctet(master, i, n);
    if constexpr (Step::kReadsGrad) grad = LoadOctet(states.grad, i, n);
    if (states.m != nullptr) m = LoadOctet(states.m, i, n);
    if (states.v != nullptr) v = LoadOctet(states.v, i, n);
#pragma unroll
    for (int j = 0; j < kOctet; ++j)
      weights[j] = step(grad[j] * grad_scale, weights[j], m[j], v[j]);
    if constexpr (Step::kWritesMoments) {
      if (states.m != nullptr) StoreOctet(states.m, i, n, m);
      if (states.v != nullptr) StoreOctet(states.v, i, n, v);
    }
    Octet rounded;
#pragma unroll
    for (int j = 0; j < kOctet; ++j)
      rounded[j] = round(weights[j], i + j);
    StoreOctet(master, i, n, std::is_same_v<W, P> ? rounded : weights);
    StoreOctet(param, i, n, rounded);
  }
}

template <typename P, typename W, typename G, typename M, typename Step, typename Round = Nearest>
void LaunchUpdate(const Update& u, const Step& step, const Round& round = {}) {
  const int64_t n = u.param.num_elems;
  Launch(UpdateKernel<P, W, G, M, Step, Round>, {NumOctetBlocks(n), kThreads}, u.param, u.master,
         States<G, M>{Data<M>(u.m), Data<M>(u.v), Data<G>(u.grad)}, n, u.scale, step, round);
}

// Runs an update with an f32 master copy and f32 moments.
template <typename Step>
void Run(const Update& u, const Step& step) {
  Visit(u.param.dtype, [&]<typename P>(P) {
    Visit(u.grad.dtype, [&]<typename G>(G) { LaunchUpdate<P, float, G, float>(u, step); });
  });
}

// An update that changes its moments by the gradient.
struct Learns {
  static constexpr bool kReadsGrad = true, kWritesMoments = true;
};
// One by moments that rest.
struct Applies {
  static constexpr bool kReadsGrad = false, kWritesMoments = false;
};

// Kingma and Ba 2015; Loshchilov and Hutter 2019. Decoupled decay multiplies by `shrink`, the other
// adds `l2`.
struct Adam : Learns {
  float beta1, beta2, eps;
  float shrink, l2, step_size, v_scale;

  __device__ float operator()(float grad, float before, float& m, float& v) const {
    const float g = grad + l2 * before;
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * g * g;
    return shrink * before - step_size * m / (sqrtf(v) * v_scale + eps);
  }
};

struct Sgd : Learns {
  float lr, weight_decay, momentum, dampening;
  bool nesterov, first;

  __device__ float operator()(float grad, float before, float& buffer, float&) const {
    const float g = grad + weight_decay * before;
    if (momentum == 0.0F) return before - lr * g;
    // It starts as the first gradient, undampened, as in PyTorch.
    buffer = first ? g : momentum * buffer + (1.0F - dampening) * g;
    return before - lr * (nesterov ? g + momentum * buffer : buffer);
  }
};

struct Adagrad : Learns {
  float lr, eps, weight_decay;

  __device__ float operator()(float grad, float before, float& sum, float&) const {
    const float g = grad + weight_decay * before;
    sum += g * g;
    return before - lr * g / (sqrtf(sum) + eps);
  }
};

struct Lion : Learns {
  float lr, beta1, beta2, shrink;

  __device__ float operator()(float g, float before, float& m, float&) const {
    const float c = beta1 * m + (1.0F - beta1) * g;
    const float step = c > 0.0F ? lr : (c < 0.0F ? -lr : 0.0F);
    m = beta2 * m + (1.0F - beta2) * g;
    return shrink * before - step;
  }
};

__device__ float LambDirection(float m, float v, float param, float eps, float weight_decay) {
  return m / (sqrtf(v) + eps) + weight_decay * param;
}

struct Lamb : Applies {
  float eps, weight_decay, step_size;

  __device__ float operator()(float, float before, float m, float v) const {
    return before - step_size * LambDirection(m, v, before, eps, weight_decay);
  }
};

struct FrozenAdam : Applies {
  float lr, eps, weight_decay;

  __device__ float operator()(float, float before, float m, float v) const {
    const float direction = v > 0.0F ? m / (sqrtf(v) + eps) : 0.0F;
    return before - lr * (direction + weight_decay * before);
  }
};

struct LambFactors {
  float beta1, beta2, eps, weight_decay;
};

template <typename G>
__global__ void LambMomentsKernel(double* parts, const float* master, States<G> states,
                                  int64_t num_elems, const StepScale* scale, LambFactors u) {
  const int64_t n = Skips(scale) ? 0 : num_elems;
  const float grad_scale = GradScale(scale);
  double params = 0, directions = 0;
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    const Octet grad = LoadOctet(states.grad, i, n), before = LoadOctet(master, i, n);
    Octet m = LoadOctet(states.m, i, n), v = LoadOctet(states.v, i, n);
#pragma unroll
    for (int j = 0; j < kOctet; ++j) {
      const float g = grad[j] * grad_scale;
      m[j] = u.beta1 * m[j] + (1.0F - u.beta1) * g;
      v[j] = u.beta2 * v[j] + (1.0F - u.beta2) * g * g;
      if (i + j >= n) continue;  // There, 0 / (0 + eps) need not be 0.
      const double param = before[j];
      const double direction = LambDirection(m[j], v[j], before[j], u.eps, u.weight_decay);
      params += param * param;
      directions += direction * direction;
    }
    StoreOctet(states.m, i, n, m);
    StoreOctet(states.v, i, n, v);
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
  const auto correction = [&](float beta) {
    return op.bias_correction ? 1 - std::pow(double{beta}, static_cast<double>(op.step)) : 1;
  };
  const Adam step{{},
                  op.beta1,
                  op.beta2,
                  op.eps,
                  op.decoupled_weight_decay ? 1.0F - op.lr * op.weight_decay : 1.0F,
                  op.decoupled_weight_decay ? 0.0F : op.weight_decay,
                  static_cast<float>(op.lr / correction(op.beta1)),
                  static_cast<float>(1 / std::sqrt(correction(op.beta2)))};
  const Update u = UpdateOf(op);
  const bool has_copy = op.master.dtype == DType::kF32;
  if (has_copy && !op.rounding) return Run(u, step);
  if (has_copy) {
    return Visit(op.grad.dtype, [&]<typename G>(G) {
      LaunchUpdate<B, float, G, float>(u, step, AtRandom{*op.rounding});
    });
  }
  const auto run = [&](const auto& round) {
    op.m.dtype == DType::kF32 ? LaunchUpdate<B, B, B, float>(u, step, round)
                              : LaunchUpdate<B, B, B, B>(u, step, round);
  };
  op.rounding ? run(AtRandom{*op.rounding}) : run(Nearest());
}

template <>
void RunOp(const op::SgdStep& op, CudaWorkspace&) {
  const Tensor buffer = op.momentum == 0 ? Tensor{} : op.momentum_buffer;
  Run(UpdateOf(op, buffer),
      Sgd{{}, op.lr, op.weight_decay, op.momentum, op.dampening, op.nesterov, op.step == 1});
}

template <>
void RunOp(const op::AdagradStep& op, CudaWorkspace&) {
  Run(UpdateOf(op, op.sum), Adagrad{{}, op.lr, op.eps, op.weight_decay});
}

template <>
void RunOp(const op::LionStep& op, CudaWorkspace&) {
  Run(UpdateOf(op, op.m), Lion{{}, op.lr, op.beta1, op.beta2, 1.0F - op.lr * op.weight_decay});
}

template <>
void RunOp(const op::LambMoments& op, CudaWorkspace& workspace) {
  constexpr int64_t kPartBytes = 2 * kSumWorkspaceBytes;
  auto* parts = static_cast<double*>(workspace.Get(kPartBytes + int64_t{sizeof(LambSums)}));
  double* sums = parts + kPartBytes / sizeof(double);
  const int num_parts = NumSumBlocks(op.param.num_elems);
  Visit(op.grad.dtype, [&]<typename G>(G) {
    Launch(LambMomentsKernel<G>, {num_parts, kThreads}, parts, op.master,
           States<G>{Data<float>(op.m), Data<float>(op.v), Data<G>(op.grad)}, op.param.num_elems,
           op.scale, LambFactors{op.beta1, op.beta2, op.eps, op.weight_decay});
  });
  Launch(SumPairsKernel, {2, kThreads}, sums, parts, num_parts);
  workspace.stream().Download(op.sums, sums, sizeof(LambSums));
}

template <>
void RunOp(const op::LambApply& op, CudaWorkspace&) {
  const auto step = static_cast<double>(op.step);
  double step_size = op.lr;
  if (op.bias_correction) {
    step_size *=
        std::sqrt(1 - std::pow(double{op.beta2}, step)) / (1 - std::pow(double{op.beta1}, step));
  }
  Run(UpdateOf(op),
      Lamb{{}, op.eps, op.weight_decay, static_cast<float>(step_size) * op.trust_ratio});
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
  Run(UpdateOf(op), FrozenAdam{{}, op.lr, op.eps, op.weight_decay});
}

}  // namespace dsat::engine::cuda
