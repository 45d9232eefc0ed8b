// Which update a configuration asks for, and the learning rate of a step.
#include "engine/optimizer.h"

#include <algorithm>
#include <cmath>

namespace dsat::engine {
namespace {

void SgdUpdate(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view, float lr,
               int64_t step, float grad_scale) {
  SgdArgs args;
  args.param = view.param;
  args.master = view.master;
  args.grad = view.grad;
  if (!view.moments.empty()) args.momentum_buffer = view.moments[0];
  args.lr = lr;
  args.momentum = static_cast<float>(config.momentum);
  args.dampening = static_cast<float>(config.dampening);
  args.weight_decay = static_cast<float>(config.weight_decay);
  args.nesterov = config.nesterov;
  args.step = step;
  args.grad_scale = grad_scale;
  kernels.SgdStep(args);
}

void AdamUpdate(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                float lr, int64_t step, float grad_scale) {
  AdamArgs args;
  args.param = view.param;
  args.master = view.master;
  args.grad = view.grad;
  args.m = view.moments[0];
  args.v = view.moments[1];
  args.lr = lr;
  args.beta1 = static_cast<float>(config.beta1);
  args.beta2 = static_cast<float>(config.beta2);
  args.eps = static_cast<float>(config.eps);
  args.weight_decay = static_cast<float>(config.weight_decay);
  args.decoupled_weight_decay = config.type == "adamw" || config.adam_w_mode;
  args.bias_correction = config.bias_correction;
  args.step = step;
  args.grad_scale = grad_scale;
  kernels.AdamStep(args);
}

}  // namespace

int NumMoments(const OptimizerConfig& config) {
  if (config.type != "sgd") return 2;
  return config.momentum != 0 ? 1 : 0;
}

void OptimizerStep(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                   float lr, int64_t step, float grad_scale) {
  if (config.type == "sgd") return SgdUpdate(kernels, config, view, lr, step, grad_scale);
  AdamUpdate(kernels, config, view, lr, step, grad_scale);
}

double LearningRate(const OptimizerConfig& optimizer, const SchedulerConfig& scheduler,
                    int64_t num_updates) {
  if (scheduler.type.empty()) return optimizer.lr;
  const double warmup = static_cast<double>(std::max<int64_t>(scheduler.warmup_num_steps, 2));
  const double iteration = static_cast<double>(num_updates - 1);
  double gamma = 1;
  if (num_updates == 0) {
    gamma = 0;
  } else if (iteration < warmup) {
    gamma =
        scheduler.warmup_linear ? iteration / warmup : std::log(iteration + 1) / std::log(warmup);
  }
  return scheduler.warmup_min_lr + gamma * (scheduler.warmup_max_lr - scheduler.warmup_min_lr);
}

double ClipFactor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace dsat::engine
