// Checkpoints that load at any number of ranks and any ZeRO stage.
//
// <dir>/<tag>/manifest.json says what was saved; <dir>/<tag>/rank_<r>.safetensors holds the r-th
// slice of all state, cut at parameter boundaries: tensor "<state>/<parameter>" with the index of
// its first element in the parameter as metadata under the same name. States: "param", "master"
// (f32 copy of 16-bit parameters), "moment0", "moment1". <dir>/latest holds the newest tag.
#ifndef DSAT_ENGINE_CHECKPOINT_H_
#define DSAT_ENGINE_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "engine/comm/process_group.h"
#include "engine/loss_scaler.h"
#include "engine/model/layer.h"
#include "engine/unit_state.h"

namespace dsat::engine {

// How far training has come.
struct Progress {
  int64_t num_steps = 0;
  int64_t num_skipped_steps = 0;
  LossScalerState loss_scaler;
};

// A collective call. A reader sees the tag whole or not at all. Throws by file name; the other
// ranks then get the process group's error.
void SaveCheckpoint(const std::string& dir, const std::string& tag, const Model& model,
                    const UnitStates& states, const Progress& progress, ProcessGroup& group);

// Overwrites `states`. `tag` empty: the one in <dir>/latest. Throws kNotFound by file name,
// kInvalidArgument naming what does not fit this model, dtype or optimizer, kDataLoss naming a
// parameter that is not whole.
Progress LoadCheckpoint(const std::string& dir, const std::string& tag, const Model& model,
                        UnitStates& states);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CHECKPOINT_H_
