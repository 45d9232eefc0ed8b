// Optimizer updates: one pass that reads and writes every state once.
#include <type_traits>

#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

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
  if (u.param.n == 0) return;
  Launch(UpdateKernel<P, W, G, M, Step, Round>, {NumOctetBlocks(u.param.n), kThreads},
         Data<P>(u.param), Data<W>(u.master),
         States<G, M>{Data<M>(u.m), Data<M>(u.v), Data<G>(u.grad)}, u.param.n, u.scale, step,
         round);
}

// Runs an update with an f32 master copy and f32 moments.
template <typename Step>
void Run(const Update& u, const Step& step) {
  Visit(u.param.type, [&](auto param) {
    Visit(u.grad.type,
          [&](auto grad) { LaunchUpdate<decltype(param), float, decltype(grad), float>(u, step); });
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

// Kingma and Ba 2015; Loshchilov and Hutter 2019.
struct Adam : Learns {
  float beta1, beta2, eps;
  AdamFactors f;

  __device__ float operator()(float grad, float before, float& m, float& v) const {
    const float g = grad + f.l2 * before;
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * g * g;
    return f.shrink * before - f.step_size * m / (sqrtf(v) * f.v_scale + eps);
  }
};

struct Sgd : Learns {
  float lr, weight_decay;
  SgdFactors f;
  bool has_momentum;

  __device__ float operator()(float grad, float before, float& buffer, float&) const {
    const float g = grad + weight_decay * before;
    if (!has_momentum) return before - lr * g;
    // It starts as the first gradient, undampened, as in PyTorch.
    buffer = f.first ? g : f.momentum * buffer + (1.0F - f.dampening) * g;
    return before - lr * (f.nesterov ? g + f.momentum * buffer : buffer);
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

template <typename G>
__global__ void LambMomentsKernel(double* parts, Update u, const float* master, States<G> states) {
  const int64_t n = Skips(u.scale) ? 0 : u.param.n;
  const float grad_scale = GradScale(u.scale);
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

void FindStepScale(StepScale* scale, const double* squares, int64_t rows, int64_t cols,
                   const ClipSettings& settings) {
  Launch(StepScaleKernel, {1, kThreads}, scale, squares, rows, cols, settings);
}

void AdamStep(const Update& u, const AdamFactors& factors) {
  using B = __nv_bfloat16;
  const Adam step{{}, u.beta1, u.beta2, u.eps, factors};
  const bool has_copy = u.master.type == Type::kF32;
  if (has_copy && !u.rounds_at_random) return Run(u, step);
  if (has_copy) {
    return Visit(u.grad.type, [&](auto grad) {
      LaunchUpdate<B, float, decltype(grad), float>(u, step, AtRandom{u.rounding});
    });
  }
  const auto run = [&](const auto& round) {
    u.m.type == Type::kF32 ? LaunchUpdate<B, B, B, float>(u, step, round)
                           : LaunchUpdate<B, B, B, B>(u, step, round);
  };
  u.rounds_at_random ? run(AtRandom{u.rounding}) : run(Nearest());
}

void SgdStep(const Update& u, const SgdFactors& factors) {
  Run(u, Sgd{{}, u.lr, u.weight_decay, factors, u.m.data != nullptr});
}

void AdagradStep(const Update& u) {
  Run(u, Adagrad{{}, u.lr, u.eps, u.weight_decay});
}

void LionStep(const Update& u) {
  Run(u, Lion{{}, u.lr, u.beta1, u.beta2, 1.0F - u.lr * u.weight_decay});
}

void LambMoments(double* sums, const Update& u, void* workspace) {
  auto* parts = static_cast<double*>(workspace);
  const int num_parts = NumSumBlocks(u.param.n);
  Visit(u.grad.type, [&](auto grad) {
    using G = decltype(grad);
    Launch(LambMomentsKernel<G>, {num_parts, kThreads}, parts, u, u.master.f32(),
           States<G>{u.m.f32(), u.v.f32(), Data<G>(u.grad)});
  });
  Launch(SumPairsKernel, {2, kThreads}, sums, parts, num_parts);
}

void LambApply(const Update& u, float step_size) {
  Run(u, Lamb{{}, u.eps, u.weight_decay, step_size});
}

void MomentumStep(const Update& u) {
  if (u.m.n == 0) return;
  Visit(u.grad.type, [&](auto grad) {
    Launch(MomentumKernel<decltype(grad)>, {NumOctetBlocks(u.m.n), kThreads}, u.m.f32(),
           Data<decltype(grad)>(u.grad), u.m.n, u.beta1, u.scale);
  });
}

void FrozenAdamStep(const Update& u) {
  Run(u, FrozenAdam{{}, u.lr, u.eps, u.weight_decay});
}

}  // namespace dsat::engine::cuda
