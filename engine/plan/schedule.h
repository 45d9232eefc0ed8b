// The order in which one pipeline stage computes in one step: micro-batches, activation
// checkpointing, 1F1B. It depends on no parameters, gradients or state of other ranks. Training
// without a pipeline is a pipeline of one stage, where 1F1B is gradient accumulation.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"

namespace dsat::engine {

struct ScheduleOptions {
  int num_units = 0;   // The units of the whole model.
  int first_unit = 0;  // This stage computes units [first_unit, end_unit).
  int end_unit = 0;
  int first_trained = 0;  // Units below it have no backward.
  int num_stages = 1;
  int stage = 0;
  int64_t num_micro_batches = 1;
  bool backward = true;  // false: evaluation.
  // Activation checkpointing (Chen et al. 2016): only the input of every n-th unit is kept for
  // backward, and the rest is computed again. 0 is off. The model's last unit is not recomputed.
  int64_t checkpoint_interval = 0;
  bool checkpoints_on_host = false;
};

// Forwards run ahead of backwards by as many micro-batches as there are stages after this one
// (PipeDream-Flush, Narayanan et al. 2021). Where an output and a gradient cross between two
// stages, both send and receive in one instruction, so that no stage blocks even if a message is
// sent only while it is received. REQUIRES: 0 <= first_unit < end_unit <= num_units.
std::vector<Instruction> Schedule(const ScheduleOptions& options);

// The number of micro-batches that are between their forward and their backward at once.
int NumInFlight(const ScheduleOptions& options);

}  // namespace dsat::engine
