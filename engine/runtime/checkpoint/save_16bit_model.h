// The model's parameters as one file in the dtype of training, as DeepSpeed's save_16bit_model
// writes it (deepspeed/runtime/engine.py).
#pragma once

#include <string>

#include "engine/comm/process_group.h"
#include "engine/model/layer.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// Rank 0 writes <dir>/<name>, a safetensors file of the parameters as published (published.h),
// whole or not at all. `exclude_frozen` leaves out the parameters of frozen layers. State that is
// sharded, on disk or on other pipeline stages is sent to rank 0 unit by unit and block by block,
// so that a rank needs memory for its part of one unit only. A collective call of `group`, all
// ranks. Throws kInvalidArgument if `name` cannot be the name of a file or does not end in
// .safetensors, and Errors that name the file; the other ranks then throw kAborted, and training
// can continue.
void Save16BitModel(const std::string& dir, const std::string& name, bool exclude_frozen,
                    const Model& model, UnitStates& states, int data_parallel_size,
                    ProcessGroup& group);

}  // namespace dsat::engine
