// Decides whether two configurations are the same: they differ only in keys without effect here.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "engine/config/keys.h"
#include "proto/experiment.h"

namespace dsat {

// Whether the key has an effect at the stage, on the ranks of `spec`.
bool HasEffect(const engine::Key& key, const ExperimentSpec& spec, int stage);

// A text that is equal for two resolved configurations of `spec` (engine::ConfigForTrial) if they
// run alike.
// The order of keys and the spelling of numbers (500000000, 5e8) do not matter, and by the rows of
// `keys` these fold away:
//   - a key that has no effect at the configuration's ZeRO stage
//   - the part of a size in elements that exceeds `num_params`, unless that is 0 or DeepSpeed
//     allocates as much
//   - a key that is set to its default, unless it is semantic and never searched: the meaning of
//     such a default can depend on other keys, as that of the learning rate does on the optimizer
std::string EffectiveKey(const Json& ds_config, const ExperimentSpec& spec, int64_t num_params,
                         const engine::KeyTable& keys = engine::Keys());

}  // namespace dsat
