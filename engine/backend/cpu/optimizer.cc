// Optimizer updates: one pass that reads and writes every state once.
#include <bit>
#include <type_traits>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/vec.h"
#include "engine/backend/cpu/visit_update.h"

namespace dsat::engine {
namespace {

// To bf16.
struct AtRandom {
  float operator()(float x, int64_t i) const {
    return std::bit_cast<float>(RoundAtRandom(std::bit_cast<uint32_t>(x), bits(i)));
  }
  RoundingBits bits;
};

}  // namespace

void CpuKernels::Run(const op::FindStepScale& op) {
  double sum = 0;
  for (int64_t row = 0; row < op.rows; ++row) {
    double row_sum = 0;
    for (int64_t col = 0; col < op.cols; ++col)
      row_sum += op.squares[row * op.cols + col];
    sum += row_sum;
  }
  *op.scale = StepScaleOf(sum, op.settings);
}

void CpuKernels::Run(const op::AdamStep& args) {
  if (Skips(args.scale)) return;
  const AdamRule rule(args);
  const auto update = [&]<typename Param>(const auto& m, const auto& v, Param* param, auto* master,
                                          const auto* grad) {
    if constexpr (std::is_same_v<Param, Bf16>) {
      if (args.rounding) {
        return UpdateElements(num_threads_, args, rule, m, v, param, master, grad,
                              AtRandom{*args.rounding});
      }
    }
    UpdateElements(num_threads_, args, rule, m, v, param, master, grad);
  };
  if (args.master.dtype == DType::kBF16) {
    const auto update_bf16 = [&]<typename Moment>(Moment) {
      update(MomentsOf<Moment>(args.m), MomentsOf<Moment>(args.v), args.param.bf16(),
             args.master.bf16(), args.grad.bf16());
    };
    return args.m.dtype == DType::kBF16 ? update_bf16(Bf16{}) : update_bf16(float{});
  }
  VisitUpdate(args, [&](auto* param, float* master, const auto* grad) {
    update(MomentsOf(args.m), MomentsOf(args.v), param, master, grad);
  });
}

void CpuKernels::Run(const op::SgdStep& args) {
  const SgdRule rule(args);
  if (args.momentum == 0) return Update(num_threads_, args, rule, NoMoments());
  Update(num_threads_, args, rule, MomentsOf(args.momentum_buffer));
}

void CpuKernels::Run(const op::AdagradStep& args) {
  Update(num_threads_, args, AdagradRule(args), MomentsOf(args.sum));
}

void CpuKernels::Run(const op::LionStep& args) {
  Update(num_threads_, args, LionRule(args), MomentsOf(args.m));
}

// LAMB computes its direction twice rather than keeping it: it would take as much memory as a
// moment, and reading that would cost more than the division.
void CpuKernels::Run(const op::LambMoments& args) {
  *args.sums = {};
  const float grad_scale = GradScale(args.scale);
  float* m = args.m.f32();
  float* v = args.v.f32();
  const LambMomentsRule rule(args);
  VisitUpdate(args, [&](auto*, float* master, const auto* grad) {
    const auto update = [=](int64_t begin, int64_t end) {
      const LambMomentsRule own = rule;  // Through the closure it would be loaded in every turn.
      double params = 0;
      double directions = 0;
#pragma omp simd reduction(+ : params, directions)
      for (int64_t i = begin; i < end; ++i) {
        const double param = master[i];
        const double direction = own(ToFloat(grad[i]) * grad_scale, master[i], m[i], v[i]);
        params += param * param;
        directions += direction * direction;
      }
      return LambSums{params, directions};
    };
    *args.sums = SumOverBlocks<LambSums>(scratch_, num_threads_, args.param.num_elems, update);
  });
}

void CpuKernels::Run(const op::LambApply& args) {
  Update(num_threads_, args, LambRule(args), MomentsOf(args.m), MomentsOf(args.v));
}

}  // namespace dsat::engine
