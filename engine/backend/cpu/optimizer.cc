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
  if (Skips(args)) return;
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

}  // namespace dsat::engine
