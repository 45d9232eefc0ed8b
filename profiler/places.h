// The places of a search space: every stage with the settings of structural keys that are worth a
// search, chosen by what the predictor says of them before anything runs.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "engine/config/keys.h"
#include "profiler/predictor.h"
#include "proto/experiment.h"

namespace dsat {

struct Place {
  int stage = 0;
  Assignment settings;  // As StageSpace's.
  Json ds_config;       // The submitted config, canonical, at the stage with the settings.
};

// The places of spec.options.zero_stages, in that order. The first one of a stage is as submitted,
// except that keys which the stage refuses have their defaults. A published space has no other
// places, unless spec.search_space names a structural key.
//
// A place is left out, with its reason in `left_out`, if no configuration of it meets the
// conditions of spec.where. If that leaves none, ThrowNothingLeft (conditions.h) is called.
//
// A place other than the first one is also left out,
//   - if it is refused, or does not fit one sample while another place does;
//   - if it checkpoints activations and allows no larger micro-batch than without;
//   - if it checkpoints or offloads, and the best place that does not is predicted to be faster; if
//     it allows micro-batches of twice the size, even if each of them costs as much as 8 samples
//     besides its own;
//   - if it offloads, times are unknown, and the submitted micro-batch size fits without;
//   - if it needs a disk, and any other place fits.
// Values that spec.search_space names are never left out because they are slow. `space` gives the
// legal sizes and what is submitted (SearchSpace::workload).
std::vector<Place> ListPlaces(const Predictor& predictor, const ExperimentSpec& spec,
                              const SearchSpace& space, const engine::KeyTable& keys,
                              std::vector<LeftOut>& left_out);

// The micro-batches of a step that decide how much memory `micro_batch` samples need: 1 or 2,
// because gradients that accumulate need memory, however many micro-batches there are.
int64_t AccumulationInMemory(const SearchSpace& space, int64_t micro_batch);

// The largest micro-batch size with which `ds_config`, otherwise unchanged, is predicted to fit; 0
// if not even 1 fits. If the samples of a kept batch fit as one micro-batch, nothing accumulates.
// Throws as Predictor::Predict.
int64_t LargestThatFits(const Predictor& predictor, Json ds_config, const SearchSpace& space);

// The ds_config of a stage's first place, unless conditions leave it out.
Json FirstPlaceAt(const ExperimentSpec& spec, int stage,
                  const engine::KeyTable& keys = engine::Keys());

// Throws as ListPlaces does for conditions that leave no place, before anything is predicted.
void CheckPlaces(const ExperimentSpec& spec, const engine::KeyTable& keys = engine::Keys());

// "stage 2 with /zero_optimization/offload_optimizer/device "cpu"", without keys that have their
// default.
std::string DescribePlace(int stage, const Assignment& settings, const engine::KeyTable& keys);

// Whether a search of `spec` varies the key by itself, at some stage.
bool IsSearchedWidely(const engine::Key& key, const ExperimentSpec& spec);

// Whether the key is an argument of a script's trainer: nothing predicts what its values change.
bool IsOfTrainer(const engine::Key& key);

// True if this key depends on other keys (Key::only_with) and none of them has the needed value in
// `ds_config`.
bool LacksItsSection(const engine::Key& key, const Json& ds_config, const engine::KeyTable& keys);

}  // namespace dsat
