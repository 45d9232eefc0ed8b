// Optimizer updates: one pass that reads and writes every state once.
#include <bit>
#include <cmath>
#include <type_traits>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"
#include "engine/backend/cpu/visit_update.h"

namespace dsat::engine {
namespace {

// Factors of one Adam step (Kingma and Ba 2015; Loshchilov and Hutter 2019 for AdamW).
struct AdamFactors {
  explicit AdamFactors(const AdamArgs& args)
      : beta1(args.beta1), beta2(args.beta2), eps(args.eps), grad_scale(GradScale(args)) {
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

// As FromFloat rounds.
struct Nearest {
  float operator()(float x, int64_t) const { return x; }
};

// To bf16.
struct AtRandom {
  float operator()(float x, int64_t i) const {
    return std::bit_cast<float>(RoundAtRandom(std::bit_cast<uint32_t>(x), bits(i)));
  }
  RoundingBits bits;
};

// The elements of AdamArgs' tensors.
template <typename Param, typename Master, typename Grad, typename Moment>
struct AdamElements {
  Param* param;
  Master* master;
  const Grad* grad;
  Moment *m, *v;
};

// A master copy in the parameter's type is rounded with it.
template <typename Param, typename Master, typename Grad, typename Moment, typename Round>
void UpdateAdam(int num_threads, int64_t num_elems, const AdamFactors& f,
                const AdamElements<Param, Master, Grad, Moment>& e, const Round& round) {
  ParallelBlocks(num_threads, num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float before = ToFloat(e.master[i]);
      const float g = ToFloat(e.grad[i]) * f.grad_scale + f.l2 * before;
      const float mean = f.beta1 * ToFloat(e.m[i]) + (1.0F - f.beta1) * g;
      const float square = f.beta2 * ToFloat(e.v[i]) + (1.0F - f.beta2) * g * g;
      const float after =
          f.shrink * before - f.step_size * mean / (std::sqrt(square) * f.v_scale + f.eps);
      e.m[i] = FromFloat<Moment>(mean);
      e.v[i] = FromFloat<Moment>(square);
      const float rounded = round(after, i);
      e.master[i] = FromFloat<Master>(std::is_same_v<Master, Param> ? rounded : after);
      e.param[i] = FromFloat<Param>(rounded);
    }
  });
}

// Updates a bf16 parameter, rounded as `args` say. `master` and `grad` belong to its elements.
template <typename Master, typename Grad, typename Moment>
void UpdateBf16Adam(int num_threads, const AdamArgs& args, Master* master, const Grad* grad) {
  const AdamFactors f(args);
  const AdamElements<Bf16, Master, Grad, Moment> e{args.param.bf16(), master, grad,
                                                   Data<Moment>(args.m), Data<Moment>(args.v)};
  args.rounding ? UpdateAdam(num_threads, args.param.num_elems, f, e, AtRandom{*args.rounding})
                : UpdateAdam(num_threads, args.param.num_elems, f, e, Nearest());
}

}  // namespace

void CpuOptimizers::Run(const op::FindStepScale& op) {
  double sum = 0;
  for (int64_t row = 0; row < op.rows; ++row) {
    double row_sum = 0;
    for (int64_t col = 0; col < op.cols; ++col)
      row_sum += op.squares[row * op.cols + col];
    sum += row_sum;
  }
  *op.scale = StepScaleOf(sum, op.settings);
}

void CpuOptimizers::Run(const op::AdamStep& args) {
  if (Skips(args)) return;
  if (args.master.dtype == DType::kBF16) {
    const auto update = args.m.dtype == DType::kBF16 ? UpdateBf16Adam<Bf16, Bf16, Bf16>
                                                     : UpdateBf16Adam<Bf16, Bf16, float>;
    return update(num_threads_, args, args.master.bf16(), args.grad.bf16());
  }
  VisitUpdate(args,
              [&]<typename Param, typename Grad>(Param* param, float* master, const Grad* grad) {
                if constexpr (std::is_same_v<Param, Bf16>) {
                  UpdateBf16Adam<float, Grad, float>(num_threads_, args, master, grad);
                } else {
                  UpdateAdam(num_threads_, args.param.num_elems, AdamFactors(args),
                             AdamElements<Param, float, Grad, float>{param, master, grad,
                                                                     args.m.f32(), args.v.f32()},
                             Nearest());
                }
              });
}

void CpuOptimizers::Run(const op::SgdStep& args) {
  const bool has_buffer = args.momentum != 0;
  float* buffer = has_buffer ? args.momentum_buffer.f32() : nullptr;
  // The buffer starts as the first gradient, undampened, as in PyTorch.
  const bool first = args.step == 1;
  const float keep = args.momentum;
  const float take = 1.0F - args.dampening;
  const float grad_scale = GradScale(args);
  VisitUpdate(args, [&]<typename Param>(Param* param, float* master, const auto* grad) {
    ParallelBlocks(num_threads_, args.param.num_elems, kBlockElems,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       const float before = master[i];
                       const float g = ToFloat(grad[i]) * grad_scale + args.weight_decay * before;
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
}

void CpuOptimizers::Run(const op::AdagradStep& args) {
  float* sum = args.sum.f32();
  const op::AdagradStep f =
      args;  // By value: through a reference it would be loaded in every turn.
  const float grad_scale = GradScale(args);
  VisitUpdate(args, [&]<typename Param>(Param* param, float* master, const auto* grad) {
    ParallelBlocks(num_threads_, f.param.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float before = master[i];
        const float g = ToFloat(grad[i]) * grad_scale + f.weight_decay * before;
        const float squares = sum[i] + g * g;
        const float after = before - f.lr * g / (std::sqrt(squares) + f.eps);
        sum[i] = squares;
        master[i] = after;
        param[i] = FromFloat<Param>(after);
      }
    });
  });
}

void CpuOptimizers::Run(const op::LionStep& args) {
  float* m = args.m.f32();
  const op::LionStep f = args;
  const float grad_scale = GradScale(args);
  const float shrink = 1.0F - f.lr * f.weight_decay;
  VisitUpdate(args, [&]<typename Param>(Param* param, float* master, const auto* grad) {
    ParallelBlocks(num_threads_, f.param.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float g = ToFloat(grad[i]) * grad_scale;
        const float c = f.beta1 * m[i] + (1.0F - f.beta1) * g;
        const float step = c > 0.0F ? f.lr : (c < 0.0F ? -f.lr : 0.0F);
        const float after = shrink * master[i] - step;
        m[i] = f.beta2 * m[i] + (1.0F - f.beta2) * g;
        master[i] = after;
        param[i] = FromFloat<Param>(after);
      }
    });
  });
}

}  // namespace dsat::engine
