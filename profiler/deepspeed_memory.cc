// DeepSpeed's own, documented estimates of memory.
#include "profiler/deepspeed_memory.h"

#include <algorithm>

namespace dsat {
namespace {

// Bytes per parameter. 18: 16-bit gradient, f32 gradient and parameter, Adam's two f32 moments.
constexpr double kParam = 2;
constexpr double kParamAndGrad = 4;
constexpr double kF32Param = 4;
constexpr double kStates = 18;
constexpr double kOffloadedStates = 16;

}  // namespace

DeepSpeedMemory DeepSpeedStage2Estimate(const DeepSpeedSetup& setup) {
  const auto params = static_cast<double>(setup.total_params);
  const auto per_node = static_cast<double>(setup.gpus_per_node);
  const double gpus = per_node * static_cast<double>(setup.num_nodes);
  if (setup.offload_optimizer) {
    return {kParam * params,
            params * std::max(kF32Param * gpus, kOffloadedStates) * setup.buffer_factor};
  }
  return {kParam * params + kStates * params / gpus,
          params * kF32Param * per_node * setup.buffer_factor};
}

DeepSpeedMemory DeepSpeedStage3Estimate(const DeepSpeedSetup& setup) {
  const auto params = static_cast<double>(setup.total_params);
  const auto largest = static_cast<double>(setup.largest_layer_params);
  const auto per_node = static_cast<double>(setup.gpus_per_node);
  const auto nodes = static_cast<double>(setup.num_nodes);
  const double whole_model = kF32Param * per_node;  // Every process makes it, without zero.Init.
  const double gathered = kParamAndGrad * largest;
  if (!setup.offload_optimizer) {
    const double made = setup.zero_init ? largest : params;
    return {gathered + kStates * params / (per_node * nodes),
            made * whole_model * setup.buffer_factor};
  }
  const double share = (setup.offload_params ? kStates : kOffloadedStates) / nodes;
  const double on_gpu = setup.offload_params ? 0 : kParam * params / (per_node * nodes);
  const double on_host = setup.zero_init ? share : std::max(whole_model, share);
  return {gathered + on_gpu, params * on_host * setup.buffer_factor};
}

}  // namespace dsat
