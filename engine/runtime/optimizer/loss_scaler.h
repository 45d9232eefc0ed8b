// The factor that keeps small gradients representable in half precision.
//
// The loss is multiplied by the factor, and the gradients are divided by it before the update
// (Micikevicius et al. 2018). The dynamic loss scale is DeepSpeed's DynamicLossScaler
// (deepspeed/runtime/fp16/loss_scaler.py, 0.19), the same at every ZeRO stage.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "engine/config/ds_config.h"

namespace dsat::engine {

// The state that a checkpoint keeps.
struct LossScalerState {
  double scale = 1;
  int64_t iteration = 0;
  int64_t last_overflow = -1;  // The iteration of the last overflow.
  int64_t hysteresis = 0;      // At 1, the next overflow halves the scale.
  bool operator==(const LossScalerState&) const = default;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LossScalerState, scale, iteration, last_overflow, hysteresis)

class LossScaler {
 public:
  // Without fp16 the scale is always 1; with a loss_scale other than 0, it is that number.
  explicit LossScaler(const Fp16Config& config);

  double Scale() const { return state_.scale; }
  // To be called after every step. Throws kInvalidArgument if a gradient overflows at the smallest
  // scale.
  void Update(bool overflow);

  const LossScalerState& state() const { return state_; }
  // A constant scale stays what the configuration says.
  void Restore(const LossScalerState& state);

 private:
  void Overflow();
  void Grow();

  Fp16Config config_;
  LossScalerState state_;
};

}  // namespace dsat::engine
