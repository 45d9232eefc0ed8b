// States the defaults of a configuration that differ between releases of DeepSpeed.
#pragma once

#include <vector>

#include "base/json.h"
#include "proto/experiment.h"

namespace dsat {

// The versions that an experiment's trials ran with, name -> text: "dsat" and, as far as they are
// known, "deepspeed", "torch" and "transformers".
Json VersionsOf(const ExperimentSpec& spec);

// `ds_config`, the configuration of a trial, with the value that it ran with for each key of
// `knobs`, and for each key whose default differs between releases of DeepSpeed or between ZeRO
// stages (Key::changed, Key::fallback_stage). Keys that are given stay, "auto" included. Left out
// are the keys of sections that the config lacks, keys without effect at its stage and, for a
// script, keys that its DeepSpeed does not know, changed defaults if its version is unknown, and
// gradient_clipping if a trainer runs that has an argument for it.
Json WithStatedDefaults(const ExperimentSpec& spec, const std::vector<Knob>& knobs, Json ds_config);

}  // namespace dsat
