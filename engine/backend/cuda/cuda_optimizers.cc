// The CUDA backend: kernels of optimizers.
#include <cmath>
#include <utility>

#include "engine/backend/any_kernels.h"
#include "engine/backend/cuda/cuda_kernels.h"
#include "engine/backend/cuda/views.h"

namespace dsat::engine {
namespace {

template <typename Args>
cuda::Update UpdateOf(const Args& args) {
  cuda::Update update;
  update.param = ViewOf(args.param);
  update.master = ViewOf(args.master);
  update.grad = ViewOf(args.grad);
  update.lr = args.lr;
  update.weight_decay = args.weight_decay;
  update.scale = args.scale;
  return update;
}

cuda::Update AdamUpdateOf(const AdamArgs& args) {
  cuda::Update update = UpdateOf(args);
  update.m = ViewOf(args.m);
  update.v = ViewOf(args.v);
  update.beta1 = args.beta1;
  update.beta2 = args.beta2;
  update.eps = args.eps;
  return update;
}

class CudaOptimizers final : public AnyOptimizerKernels<CudaOptimizers> {
 public:
  explicit CudaOptimizers(std::shared_ptr<CudaWorkspace> workspace)
      : workspace_(std::move(workspace)) {}

  template <typename Op>
  ResultOf<Op> RunAny(const Op& op) {
    return LaunchAndCheck(*this, op);
  }

  static void Launch(const op::FindStepScale& op) {
    cuda::FindStepScale(op.scale, op.squares, op.rows, op.cols, op.settings);
  }

  static void Launch(const op::AdamStep& args) {
    const auto step = static_cast<double>(args.step);
    const double correction1 = args.bias_correction ? 1 - std::pow(double{args.beta1}, step) : 1;
    const double correction2 = args.bias_correction ? 1 - std::pow(double{args.beta2}, step) : 1;
    cuda::AdamFactors factors;
    factors.shrink = args.decoupled_weight_decay ? 1.0F - args.lr * args.weight_decay : 1.0F;
    factors.l2 = args.decoupled_weight_decay ? 0.0F : args.weight_decay;
    factors.step_size = static_cast<float>(args.lr / correction1);
    factors.v_scale = static_cast<float>(1 / std::sqrt(correction2));
    cuda::Update update = AdamUpdateOf(args);
    update.rounds_at_random = args.rounding.has_value();
    update.rounding = args.rounding.value_or(RoundingBits{});
    cuda::AdamStep(update, factors);
  }

  static void Launch(const op::SgdStep& args) {
    cuda::Update update = UpdateOf(args);
    if (args.momentum != 0) update.m = ViewOf(args.momentum_buffer);
    cuda::SgdStep(update, {.momentum = args.momentum,
                           .dampening = args.dampening,
                           .nesterov = args.nesterov,
                           .first = args.step == 1});
  }

  static void Launch(const op::AdagradStep& args) {
    cuda::Update update = UpdateOf(args);
    update.m = ViewOf(args.sum);
    update.eps = args.eps;
    cuda::AdagradStep(update);
  }

  static void Launch(const op::LionStep& args) {
    cuda::Update update = UpdateOf(args);
    update.m = ViewOf(args.m);
    update.beta1 = args.beta1;
    update.beta2 = args.beta2;
    cuda::LionStep(update);
  }

  LambSums Launch(const op::LambMoments& args) {
    cuda::LambMoments(workspace_->sums(), AdamUpdateOf(args),
                      workspace_->Get(2 * cuda::SumWorkspaceBytes()));
    const auto [param, direction] = workspace_->DownloadSums();
    return {param, direction};
  }

  static void Launch(const op::LambApply& args) {
    const auto step = static_cast<double>(args.step);
    double step_size = args.lr;
    if (args.bias_correction) {
      step_size *= std::sqrt(1 - std::pow(double{args.beta2}, step)) /
                   (1 - std::pow(double{args.beta1}, step));
    }
    cuda::LambApply(AdamUpdateOf(args), static_cast<float>(step_size) * args.trust_ratio);
  }

  static void Launch(const op::MomentumStep& args) { cuda::MomentumStep(AdamUpdateOf(args)); }

  static void Launch(const op::FrozenAdamStep& args) { cuda::FrozenAdamStep(AdamUpdateOf(args)); }

  void Launch(const op::CompressSigns& op) {
    cuda::CompressSigns(ViewOf(op.error), op.signs, op.scale, ViewOf(op.values),
                        workspace_->Get(cuda::SumWorkspaceBytes()));
  }

  static void Launch(const op::DecompressSigns& op) {
    cuda::DecompressSigns(ViewOf(op.values), op.signs, op.scale, op.factor, op.accumulate);
  }

 private:
  const std::shared_ptr<CudaWorkspace> workspace_;
};

}  // namespace

std::unique_ptr<OptimizerKernels> MakeCudaOptimizers(std::shared_ptr<CudaWorkspace> workspace) {
  return std::make_unique<CudaOptimizers>(std::move(workspace));
}

}  // namespace dsat::engine
