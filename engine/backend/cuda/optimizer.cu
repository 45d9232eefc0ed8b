// Optimizer updates: one pass that reads and writes every state once.
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

// `update` for every element: step(i, gradient, master) gives the new master.
template <typename P, typename G, typename Step>
__global__ void UpdateKernel(P* param, float* master, const G* grad, int64_t n, float grad_scale,
                             Step step) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const float after = step(i, ToFloat(grad[i]) * grad_scale, master[i]);
    master[i] = after;
    param[i] = FromFloat<P>(after);
  }
}

template <typename Step>
void Run(const Update& u, const Step& step) {
  if (u.param.n == 0) return;
  Visit(u.param.type, [&](auto param) {
    Visit(u.grad.type, [&](auto grad) {
      Launch(UpdateKernel<decltype(param), decltype(grad), Step>, {NumBlocks(u.param.n), kThreads},
             Data<decltype(param)>(u.param), u.master.f32(), Data<decltype(grad)>(u.grad),
             u.param.n, u.grad_scale, step);
    });
  });
}

// Kingma and Ba 2015; Loshchilov and Hutter 2019.
struct Adam {
  float *m, *v;
  float beta1, beta2, eps;
  AdamFactors f;

  __device__ float operator()(int64_t i, float grad, float before) const {
    const float g = grad + f.l2 * before;
    const float mean = beta1 * m[i] + (1.0F - beta1) * g;
    const float square = beta2 * v[i] + (1.0F - beta2) * g * g;
    m[i] = mean;
    v[i] = square;
    return f.shrink * before - f.step_size * mean / (sqrtf(square) * f.v_scale + eps);
  }
};

struct Sgd {
  float* buffer;  // nullptr without momentum.
  float lr, weight_decay;
  SgdFactors f;

  __device__ float operator()(int64_t i, float grad, float before) const {
    const float g = grad + weight_decay * before;
    float direction = g;
    if (buffer != nullptr) {
      // It starts as the first gradient, undampened, as in PyTorch.
      const float b = f.first ? g : f.momentum * buffer[i] + (1.0F - f.dampening) * g;
      buffer[i] = b;
      direction = f.nesterov ? g + f.momentum * b : b;
    }
    return before - lr * direction;
  }
};

struct Adagrad {
  float* sum;
  float lr, eps, weight_decay;

  __device__ float operator()(int64_t i, float grad, float before) const {
    const float g = grad + weight_decay * before;
    const float squares = sum[i] + g * g;
    sum[i] = squares;
    return before - lr * g / (sqrtf(squares) + eps);
  }
};

struct Lion {
  float* m;
  float lr, beta1, beta2, shrink;

  __device__ float operator()(int64_t i, float g, float before) const {
    const float c = beta1 * m[i] + (1.0F - beta1) * g;
    const float step = c > 0.0F ? lr : (c < 0.0F ? -lr : 0.0F);
    m[i] = beta2 * m[i] + (1.0F - beta2) * g;
    return shrink * before - step;
  }
};

__device__ float LambDirection(float m, float v, float param, float eps, float weight_decay) {
  return m / (sqrtf(v) + eps) + weight_decay * param;
}

struct Lamb {
  const float *m, *v;
  float eps, weight_decay, step_size;

  __device__ float operator()(int64_t i, float, float before) const {
    return before - step_size * LambDirection(m[i], v[i], before, eps, weight_decay);
  }
};

struct FrozenAdam {
  const float *m, *v;
  float lr, eps, weight_decay;

  __device__ float operator()(int64_t i, float, float before) const {
    return before - lr * (m[i] / (sqrtf(v[i]) + eps) + weight_decay * before);
  }
};

template <typename G>
__global__ void LambMomentsKernel(double* parts, Update u, const G* grad) {
  double params = 0, directions = 0;
  for (int64_t i = FirstIndex(); i < u.param.n; i += IndexStride()) {
    const float g = ToFloat(grad[i]) * u.grad_scale;
    float *m = static_cast<float*>(u.m.data), *v = static_cast<float*>(u.v.data);
    m[i] = u.beta1 * m[i] + (1.0F - u.beta1) * g;
    v[i] = u.beta2 * v[i] + (1.0F - u.beta2) * g * g;
    const float before = static_cast<const float*>(u.master.data)[i];
    const double param = before;
    const double direction = LambDirection(m[i], v[i], before, u.eps, u.weight_decay);
    params += param * param;
    directions += direction * direction;
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
__global__ void MomentumKernel(float* m, const G* grad, int64_t n, float keep, float take) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    m[i] = keep * m[i] + take * ToFloat(grad[i]);
}

}  // namespace

void AdamStep(const Update& u, const AdamFactors& factors) {
  Run(u, Adam{u.m.f32(), u.v.f32(), u.beta1, u.beta2, u.eps, factors});
}

void SgdStep(const Update& u, const SgdFactors& factors) {
  Run(u, Sgd{u.m.f32(), u.lr, u.weight_decay, factors});
}

void AdagradStep(const Update& u) {
  Run(u, Adagrad{u.m.f32(), u.lr, u.eps, u.weight_decay});
}

void LionStep(const Update& u) {
  Run(u, Lion{u.m.f32(), u.lr, u.beta1, u.beta2, 1.0F - u.lr * u.weight_decay});
}

void LambMoments(double* sums, const Update& u, void* workspace) {
  auto* parts = static_cast<double*>(workspace);
  const int num_parts = NumSumBlocks(u.param.n);
  Visit(u.grad.type, [&](auto grad) {
    Launch(LambMomentsKernel<decltype(grad)>, {num_parts, kThreads}, parts, u,
           Data<decltype(grad)>(u.grad));
  });
  Launch(SumPairsKernel, {2, kThreads}, sums, parts, num_parts);
}

void LambApply(const Update& u, float step_size) {
  Run(u, Lamb{u.m.f32(), u.v.f32(), u.eps, u.weight_decay, step_size});
}

void MomentumStep(const Update& u) {
  if (u.m.n == 0) return;
  Visit(u.grad.type, [&](auto grad) {
    Launch(MomentumKernel<decltype(grad)>, {NumBlocks(u.m.n), kThreads}, u.m.f32(),
           Data<decltype(grad)>(u.grad), u.m.n, u.beta1, (1.0F - u.beta1) * u.grad_scale);
  });
}

void FrozenAdamStep(const Update& u) {
  Run(u, FrozenAdam{u.m.f32(), u.v.f32(), u.lr, u.eps, u.weight_decay});
}

}  // namespace dsat::engine::cuda
