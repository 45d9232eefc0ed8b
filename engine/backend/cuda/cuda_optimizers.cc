// The CUDA backend: kernels of optimizers.
#include <cmath>

#include "engine/backend/cuda/cuda_kernels.h"
#include "engine/backend/cuda/views.h"

namespace dsat::engine {
namespace {

template <typename Args>
cuda::Update UpdateOf(const Args& args) {
  DSAT_CHECK(
      args.master.num_elems == args.param.num_elems && args.grad.num_elems == args.param.num_elems,
      "{}, {} and {} elements", args.param.num_elems, args.master.num_elems, args.grad.num_elems);
  cuda::Update update;
  update.param = ViewOf(args.param);
  update.master = ViewOf(args.master);
  update.grad = ViewOf(args.grad);
  update.lr = args.lr;
  update.weight_decay = args.weight_decay;
  update.grad_scale = args.grad_scale;
  return update;
}

cuda::View StateOf(const Tensor& state, const Tensor& param, DType dtype = DType::kF32) {
  DSAT_CHECK(state.dtype == dtype && state.num_elems == param.num_elems,
             "optimizer state {} of {} elements", state.num_elems, param.num_elems);
  return ViewOf(state);
}

cuda::Update AdamUpdateOf(const AdamArgs& args, DType moment_dtype = DType::kF32) {
  cuda::Update update = UpdateOf(args);
  update.m = StateOf(args.m, args.param, moment_dtype);
  update.v = StateOf(args.v, args.param, moment_dtype);
  update.beta1 = args.beta1;
  update.beta2 = args.beta2;
  update.eps = args.eps;
  return update;
}

// f32; or beside bf16 parameters without an f32 copy, bf16 if the first is.
DType MomentType(const AdamArgs& args) {
  if (args.master.dtype == DType::kF32) return DType::kF32;
  for (const Tensor& t : {args.param, args.master, args.grad})
    DSAT_CHECK(t.dtype == DType::kBF16);
  return args.m.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

}  // namespace

void CudaKernels::AdamStep(const AdamArgs& args) {
  const auto step = static_cast<double>(args.step);
  const double correction1 = args.bias_correction ? 1 - std::pow(double{args.beta1}, step) : 1;
  const double correction2 = args.bias_correction ? 1 - std::pow(double{args.beta2}, step) : 1;
  cuda::AdamFactors factors;
  factors.shrink = args.decoupled_weight_decay ? 1.0F - args.lr * args.weight_decay : 1.0F;
  factors.l2 = args.decoupled_weight_decay ? 0.0F : args.weight_decay;
  factors.step_size = static_cast<float>(args.lr / correction1);
  factors.v_scale = static_cast<float>(1 / std::sqrt(correction2));
  cuda::Update update = AdamUpdateOf(args, MomentType(args));
  DSAT_CHECK(!args.rounding || args.param.dtype == DType::kBF16);
  update.rounds_at_random = args.rounding.has_value();
  update.rounding = args.rounding.value_or(RoundingBits{});
  cuda::AdamStep(update, factors);
  CheckLaunch("AdamStep");
}

void CudaKernels::SgdStep(const SgdArgs& args) {
  cuda::Update update = UpdateOf(args);
  if (args.momentum != 0) update.m = StateOf(args.momentum_buffer, args.param);
  cuda::SgdStep(update, {.momentum = args.momentum,
                         .dampening = args.dampening,
                         .nesterov = args.nesterov,
                         .first = args.step == 1});
  CheckLaunch("SgdStep");
}

void CudaKernels::AdagradStep(const AdagradArgs& args) {
  cuda::Update update = UpdateOf(args);
  update.m = StateOf(args.sum, args.param);
  update.eps = args.eps;
  cuda::AdagradStep(update);
  CheckLaunch("AdagradStep");
}

void CudaKernels::LionStep(const LionArgs& args) {
  cuda::Update update = UpdateOf(args);
  update.m = StateOf(args.m, args.param);
  update.beta1 = args.beta1;
  update.beta2 = args.beta2;
  cuda::LionStep(update);
  CheckLaunch("LionStep");
}

LambSums CudaKernels::LambMoments(const AdamArgs& args) {
  cuda::LambMoments(sums_, AdamUpdateOf(args), Workspace(2 * cuda::SumWorkspaceBytes()));
  CheckLaunch("LambMoments");
  double sums[2] = {};
  Download(sums, sums_, sizeof(sums));
  return {sums[0], sums[1]};
}

void CudaKernels::LambApply(const AdamArgs& args, float trust_ratio) {
  const auto step = static_cast<double>(args.step);
  double step_size = args.lr;
  if (args.bias_correction) {
    step_size *= std::sqrt(1 - std::pow(double{args.beta2}, step)) /
                 (1 - std::pow(double{args.beta1}, step));
  }
  cuda::LambApply(AdamUpdateOf(args), static_cast<float>(step_size) * trust_ratio);
  CheckLaunch("LambApply");
}

void CudaKernels::MomentumStep(const AdamArgs& args) {
  cuda::MomentumStep(AdamUpdateOf(args));
  CheckLaunch("MomentumStep");
}

void CudaKernels::FrozenAdamStep(const AdamArgs& args) {
  cuda::FrozenAdamStep(AdamUpdateOf(args));
  CheckLaunch("FrozenAdamStep");
}

void CudaKernels::CompressSigns(Tensor error, uint8_t* signs, float* scale, Tensor values) {
  DSAT_CHECK(
      values.num_elems > 0 && values.num_elems % 8 == 0 && error.num_elems == values.num_elems,
      "{} values, {} errors", values.num_elems, error.num_elems);
  cuda::CompressSigns(ViewOf(error), signs, scale, ViewOf(values),
                      Workspace(cuda::SumWorkspaceBytes()));
  CheckLaunch("CompressSigns");
}

void CudaKernels::DecompressSigns(Tensor values, const uint8_t* signs, const float* scale,
                                  float factor, bool accumulate) {
  DSAT_CHECK(values.num_elems % 8 == 0, "{} values", values.num_elems);
  cuda::DecompressSigns(ViewOf(values), signs, scale, factor, accumulate);
  CheckLaunch("DecompressSigns");
}

}  // namespace dsat::engine
