// Makes the update that a configuration asks for.
#include "engine/runtime/optimizer/optimizer.h"

#include "base/rng.h"

namespace dsat::engine {
namespace {

// Makes the arguments that every kernel has.
template <typename Args>
Args MakeArgs(const OptimizerConfig& config, const OptimizerView& view, const StepScale* scale) {
  Args args;
  args.param = view.param;
  args.master = view.master;
  args.grad = view.grad;
  args.lr = static_cast<float>(config.lr);
  args.weight_decay = static_cast<float>(config.weight_decay);
  args.scale = scale;
  return args;
}

RoundingBits BitsOf(const RoundingSource& source, int64_t step) {
  Rng random(source.seed, static_cast<uint64_t>(source.unit), "stochastic rounding");
  random.Seek(static_cast<uint64_t>(step));
  return {.key = random.NextU64(), .begin = source.begin};
}

void SgdUpdate(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
               int64_t step, const StepScale* scale) {
  auto args = MakeArgs<op::SgdStep>(config, view, scale);
  if (!view.moments.empty()) args.momentum_buffer = view.moments[0];
  args.momentum = static_cast<float>(config.momentum);
  args.dampening = static_cast<float>(config.dampening);
  args.nesterov = config.nesterov;
  args.step = step;
  kernels.Run(args);
}

void AdagradUpdate(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                   int64_t step, const StepScale* scale) {
  auto args = MakeArgs<op::AdagradStep>(config, view, scale);
  args.sum = view.moments[0];
  args.lr = static_cast<float>(config.lr / (1 + static_cast<double>(step - 1) * config.lr_decay));
  args.eps = static_cast<float>(config.eps);
  kernels.Run(args);
}

void LionUpdate(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                const StepScale* scale) {
  auto args = MakeArgs<op::LionStep>(config, view, scale);
  args.m = view.moments[0];
  args.beta1 = static_cast<float>(config.beta1);
  args.beta2 = static_cast<float>(config.beta2);
  kernels.Run(args);
}

}  // namespace

int NumMoments(const OptimizerConfig& config) {
  if (config.type == "sgd") return config.momentum != 0 ? 1 : 0;
  return config.type == "adagrad" || config.type == "lion" ? 1 : 2;
}

AdamArgs MakeAdamArgs(const OptimizerConfig& config, const OptimizerView& view, int64_t step,
                      const StepScale* scale) {
  auto args = MakeArgs<AdamArgs>(config, view, scale);
  args.m = view.moments[0];
  args.v = view.moments[1];
  args.beta1 = static_cast<float>(config.beta1);
  args.beta2 = static_cast<float>(config.beta2);
  args.eps = static_cast<float>(config.eps);
  args.decoupled_weight_decay = config.type == "adamw" || config.adam_w_mode;
  // DeepSpeed's OnebitAdam takes the setting and does not correct.
  args.bias_correction = config.bias_correction && !IsOneBit(config);
  args.step = step;
  if (config.stochastic_rounding) args.rounding = BitsOf(view.rounding, step);
  return args;
}

bool IsOneBit(const OptimizerConfig& config) {
  return config.type == "onebitadam";
}

void OptimizerStep(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                   int64_t step, const StepScale* scale) {
  if (config.type == "sgd") return SgdUpdate(kernels, config, view, step, scale);
  if (config.type == "adagrad") return AdagradUpdate(kernels, config, view, step, scale);
  if (config.type == "lion") return LionUpdate(kernels, config, view, scale);
  // 1-bit Adam, too, until freeze_step.
  DSAT_CHECK(config.type == "adam" || config.type == "adamw" || IsOneBit(config), "{}",
             config.type);
  kernels.Run(op::AdamStep{MakeAdamArgs(config, view, step, scale)});
}

}  // namespace dsat::engine
