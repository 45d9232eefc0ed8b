// A model's profile on a device that is not here, by its data sheet, in place of the one that a
// trial measures.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/runtime/cluster.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// The cluster of a GPU by its driver's name, such as "NVIDIA H200"; that of an A100 for others, of
// which a search needs no more than the usual proportions.
engine::Cluster ClusterOfGpu(const std::string& gpu);

// FLOP/s and bytes/s of a rank's device, for the times of a dry run (python/dsat/_dry_run.py).
Json SpeedsOfDryRun(const engine::Cluster& cluster, const Json& ds_config);

// Gives the profile of a model the memory and the speeds of a rank of the cluster.
void PutOn(const engine::Cluster& cluster, ModelProfile& profile);

// The profile of the built-in engine's model, without a trial. Throws as MakeModel (models.h), and
// as Predict for a config that the engine refuses.
ModelProfile ProfileByDataSheet(const ExperimentSpec& spec, const engine::Cluster& cluster);

}  // namespace dsat
