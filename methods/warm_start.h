// The evidence of an earlier experiment, which auto uses as a prior of a new search.
//
// The evidence itself is recorded, not what follows from it: how much it counts for another model,
// machine or number of ranks is up to the method (docs/dev/auto.md), which also drops it if its own
// measurements contradict it.
#pragma once

#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

struct EarlierSearch {
  ExperimentId experiment = 0;
  // Devices, driver and versions are the same as those of the new search.
  bool same_machine = false;
  SearchSpace space;
  // The trials that succeeded or did not fit, with reason, ds_config, points and times. Their
  // numbers are those of the earlier experiment.
  std::vector<Trial> trials;
};

Json ToJson(const EarlierSearch& earlier);
// Throws Json::exception or kInvalidArgument if the JSON is not what ToJson writes.
EarlierSearch EarlierSearchFromJson(const Json& json);

}  // namespace dsat
