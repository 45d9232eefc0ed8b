// The memory estimates that DeepSpeed documents, for comparison with what this engine counts. They
// cover model states only, without activations and buckets. Stage 3 makes parameters sharded.
//
// Formulas of estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs
// (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py; docs/code-docs/source/memory.rst).
#pragma once

#include <cstdint>

namespace dsat {

struct DeepSpeedSetup {
  int64_t total_params = 0;
  int64_t largest_layer_params = 0;  // Stage 3 only.
  int64_t gpus_per_node = 1;
  int64_t num_nodes = 1;
  bool offload_optimizer = false;
  bool offload_params = false;  // Stage 3 only.
};

struct DeepSpeedMemory {
  double gpu_bytes = 0;  // Per GPU.
  double cpu_bytes = 0;  // Per node.
};

DeepSpeedMemory DeepSpeedStage2Estimate(const DeepSpeedSetup& setup);
DeepSpeedMemory DeepSpeedStage3Estimate(const DeepSpeedSetup& setup);

}  // namespace dsat
