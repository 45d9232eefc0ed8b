// Optimizer updates: one pass that reads and writes every state once.
#include <cmath>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// Factors of one Adam step (Kingma and Ba 2015; Loshchilov and Hutter 2019 for AdamW).
struct AdamFactors {
  explicit AdamFactors(const AdamArgs& args)
      : beta1(args.beta1), beta2(args.beta2), eps(args.eps), grad_scale(args.grad_scale) {
    shrink = args.decoupled_weight_decay ? 1.0F - args.lr * args.weight_decay : 1.0F;
    l2 = args.decoupled_weight_decay ? 0.0F : args.weight_decay;
    const auto step = static_cast<double>(args.step);
    const double correction1 = args.bias_correction ? 1 - std::pow(double{beta1}, step) : 1;
    const double correction2 = args.bias_correction ? 1 - std::pow(double{beta2}, step) : 1;
    step_size = static_cast<float>(args.lr / correction1);
    v_scale = static_cast<float>(1 / std::sqrt(correction2));
  }

  float beta1, beta2, eps, grad_scale;
  float shrink = 1;     // Decoupled weight decay multiplies the parameter.
  float l2 = 0;         // The other kind is added to the gradient.
  float step_size = 0;  // lr / (1 - beta1^step)
  float v_scale = 0;    // 1 / sqrt(1 - beta2^step)
};

void CheckSizes(const Tensor& param, const Tensor& master, const Tensor& grad) {
  DSAT_CHECK(param.num_elems == master.num_elems && param.num_elems == grad.num_elems,
             "param {}, master {}, grad {} elements", param.num_elems, master.num_elems,
             grad.num_elems);
}

}  // namespace

void CpuKernels::AdamStep(const AdamArgs& args) {
  CheckSizes(args.param, args.master, args.grad);
  DSAT_CHECK(args.m.num_elems == args.param.num_elems && args.v.num_elems == args.param.num_elems,
             "m {}, v {} of {} elements", args.m.num_elems, args.v.num_elems, args.param.num_elems);
  const AdamFactors f(args);
  float* master = args.master.f32();
  float* m = args.m.f32();
  float* v = args.v.f32();
  VisitDType(args.param.dtype, [&](auto param_type) {
    VisitDType(args.grad.dtype, [&](auto grad_type) {
      using Param = decltype(param_type);
      Param* param = Data<Param>(args.param);
      const auto* grad = Data<decltype(grad_type)>(args.grad);
      ParallelBlocks(
          num_threads_, args.param.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
            for (int64_t i = begin; i < end; ++i) {
              const float before = master[i];
              const float g = ToFloat(grad[i]) * f.grad_scale + f.l2 * before;
              const float mean = f.beta1 * m[i] + (1.0F - f.beta1) * g;
              const float square = f.beta2 * v[i] + (1.0F - f.beta2) * g * g;
              const float after =
                  f.shrink * before - f.step_size * mean / (std::sqrt(square) * f.v_scale + f.eps);
              m[i] = mean;
              v[i] = square;
              master[i] = after;
              param[i] = FromFloat<Param>(after);
            }
          });
    });
  });
}

void CpuKernels::SgdStep(const SgdArgs& args) {
  CheckSizes(args.param, args.master, args.grad);
  const bool has_buffer = args.momentum != 0;
  DSAT_CHECK(!has_buffer || args.momentum_buffer.num_elems == args.param.num_elems,
             "momentum buffer {} of {} elements", args.momentum_buffer.num_elems,
             args.param.num_elems);
  float* master = args.master.f32();
  float* buffer = has_buffer ? args.momentum_buffer.f32() : nullptr;
  // The buffer starts as the first gradient, undampened, as in PyTorch.
  const bool first = args.step == 1;
  const float keep = args.momentum;
  const float take = 1.0F - args.dampening;
  VisitDType(args.param.dtype, [&](auto param_type) {
    VisitDType(args.grad.dtype, [&](auto grad_type) {
      using Param = decltype(param_type);
      Param* param = Data<Param>(args.param);
      const auto* grad = Data<decltype(grad_type)>(args.grad);
      ParallelBlocks(
          num_threads_, args.param.num_elems, kBlockElems, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const float before = master[i];
              const float g = ToFloat(grad[i]) * args.grad_scale + args.weight_decay * before;
              float direction = g;
              if (has_buffer) {
                buffer[i] = first ? g : keep * buffer[i] + take * g;
                direction = args.nesterov ? g + keep * buffer[i] : buffer[i];
              }
              const float after = before - args.lr * direction;
              master[i] = after;
              param[i] = FromFloat<Param>(after);
            }
          });
    });
  });
}

}  // namespace dsat::engine
