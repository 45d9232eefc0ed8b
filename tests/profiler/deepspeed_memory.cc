// DeepSpeed's own, documented estimates of memory.
#include "tests/profiler/deepspeed_memory.h"

#include <algorithm>

namespace dsat {
namespace {

// Bytes per parameter. 18: 16-bit gradient, f32 gradient and parameter, Adam's two f32 moments.
constexpr double kParam = 2;
constexpr double kParamAndGrad = 4;
constexpr double kF32Param = 4;
constexpr double kStates = 18;
constexpr double kOffloadedStates = 16;
constexpr double kBufferFactor = 1.5;  // On host memory.

}  // namespace

DeepSpeedMemory DeepSpeedStage2Estimate(const DeepSpeedSetup& setup) {
  const auto params = static_cast<double>(setup.total_params);
  const auto per_node = static_cast<double>(setup.gpus_per_node);
  const double gpus = per_node * static_cast<double>(setup.num_nodes);
  if (setup.offload_optimizer) {
    return {kParam * params, params * std::max(kF32Param * gpus, kOffloadedStates) * kBufferFactor};
  }
  return {kParam * params + kStates * params / gpus, params * kF32Param * per_node * kBufferFactor};
}

DeepSpeedMemory DeepSpeedStage3Estimate(const DeepSpeedSetup& setup) {
  const auto params = static_cast<double>(setup.total_params);
  const auto largest = static_cast<double>(setup.largest_layer_params);
  const auto per_node = static_cast<double>(setup.gpus_per_node);
  const auto nodes = static_cast<double>(setup.num_nodes);
  const double gathered = kParamAndGrad * largest;
  if (!setup.offload_optimizer) {
    return {gathered + kStates * params / (per_node * nodes),
            largest * kF32Param * per_node * kBufferFactor};
  }
  const double on_gpu = setup.offload_params ? 0 : kParam * params / (per_node * nodes);
  const double on_host = (setup.offload_params ? kStates : kOffloadedStates) / nodes;
  return {gathered + on_gpu, params * on_host * kBufferFactor};
}

}  // namespace dsat
