// The factor that keeps small gradients representable in half precision.
#include "engine/runtime/optimizer/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace dsat::engine {
namespace {

constexpr double kFactor = 2;

bool IsDynamic(const Fp16Config& config) {
  return config.enabled && config.loss_scale == 0;
}

double FirstScale(const Fp16Config& config) {
  if (!config.enabled) return 1;
  if (!IsDynamic(config)) return config.loss_scale;
  return std::ldexp(1.0, static_cast<int>(config.initial_scale_power));
}

}  // namespace

LossScaler::LossScaler(const Fp16Config& config) : config_(config) {
  state_.scale = FirstScale(config);
  state_.hysteresis = config.hysteresis;
}

void LossScaler::Update(bool overflow) {
  if (!IsDynamic(config_)) return;
  if (overflow) {
    Overflow();
  } else {
    Grow();
  }
  ++state_.iteration;
}

void LossScaler::Overflow() {
  state_.last_overflow = state_.iteration;
  if (config_.hysteresis != 1 && state_.hysteresis != 1) {
    --state_.hysteresis;
    return;
  }
  if (state_.scale == config_.min_loss_scale) {
    Throw(ErrorCode::kInvalidArgument,
          "/fp16/min_loss_scale is {}: the gradients overflow at this loss scale too, and it "
          "cannot be lowered; expected a smaller learning rate, or /bf16/enabled",
          config_.min_loss_scale);
  }
  state_.scale = std::max(state_.scale / kFactor, config_.min_loss_scale);
}

void LossScaler::Grow() {
  if (config_.consecutive_hysteresis) state_.hysteresis = config_.hysteresis;
  const int64_t num_stable = state_.iteration - state_.last_overflow - 1;
  if (num_stable == 0 || num_stable % config_.loss_scale_window != 0) return;
  state_.hysteresis = config_.hysteresis;
  state_.scale *= kFactor;
}

void LossScaler::Restore(const LossScalerState& state) {
  if (IsDynamic(config_)) state_ = state;
}

}  // namespace dsat::engine
