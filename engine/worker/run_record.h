// The record that a training keeps of itself in its checkpoints, so that no other one continues
// them unnoticed.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/config/ds_config.h"
#include "engine/data/dataset.h"
#include "engine/files/checkpoint_manifest.h"
#include "proto/trial_task.h"

namespace dsat::engine {

// Model, data and their size, optimizer, schedule, clipping and seed, as the task has them.
Json RecordOf(const TrialTask& task, const DsConfig& config, const Dataset& data, int64_t seed);

// The settings that differ between a checkpoint and the training that is to continue it: "/KEY was
// VALUE and is VALUE; ...", "" if there are none. Files may have other names if they have the same
// size. Throws kInvalidArgument naming those differences for which a training is another one: in
// the model, the data or the type of the optimizer. Old checkpoints have no record.
std::string ChangesSince(const CheckpointManifest& manifest, const Json& record,
                         const std::string& folder);

}  // namespace dsat::engine
