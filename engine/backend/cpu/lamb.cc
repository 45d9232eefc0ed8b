// LAMB's two halves. The direction is computed twice rather than kept: it would take as much memory
// as a moment, and reading that would cost more than the division.
#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"
#include "engine/backend/cpu/visit_update.h"

namespace dsat::engine {

void CpuKernels::Run(const op::LambMoments& args) {
  *args.sums = {};
  const float grad_scale = GradScale(args);
  float* m = args.m.f32();
  float* v = args.v.f32();
  const AdamArgs f = args;  // By value: through a reference it would be loaded in every turn.
  VisitUpdate(args, [&](auto*, float* master, const auto* grad) {
    const auto update = [=](int64_t begin, int64_t end) {
      double params = 0;
      double directions = 0;
#pragma omp simd reduction(+ : params, directions)
      for (int64_t i = begin; i < end; ++i) {
        const float g = ToFloat(grad[i]) * grad_scale;
        m[i] = f.beta1 * m[i] + (1.0F - f.beta1) * g;
        v[i] = f.beta2 * v[i] + (1.0F - f.beta2) * g * g;
        const double param = master[i];
        const double direction = LambDirection(m[i], v[i], master[i], f.eps, f.weight_decay);
        params += param * param;
        directions += direction * direction;
      }
      return LambSums{params, directions};
    };
    *args.sums = SumOverBlocks<LambSums>(scratch_, num_threads_, f.param.num_elems, update);
  });
}

void CpuKernels::Run(const op::LambApply& args) {
  Update(num_threads_, args, LambRule(args), MomentsOf(args.m), MomentsOf(args.v));
}

}  // namespace dsat::engine
