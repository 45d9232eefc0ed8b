// Finds out what the engine of a script ran with, and compares it with what it was asked to run.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/json.h"
#include "proto/experiment.h"
#include "searcher/scripts/hook_report.h"

namespace dsat {

// Why the ranks that ran, or those of them that share samples, are not those of a trial of `spec`;
// "" if they are, or if the report does not say.
std::string MisfitOfRanks(const HookReport& report, const ExperimentSpec& spec);

// Why the samples of the rank's forward passes are not those of a trial with `micro_batch`; "" if
// they are, or if the report does not say. `others` has the largest batches of earlier launches by
// their micro-batch sizes. The reason names the flag of the entrypoint that feeds them, if one has
// their size.
std::string MisfitOfBatches(const HookReport& report, int64_t micro_batch,
                            const std::map<int64_t, int64_t>& others, const ExperimentSpec& spec);

// "train_micro_batch_size_per_gpu is 8 instead of 51, ..." for all settings that `asked`, the
// trial's ds_config, gives as another number; "" if there is none.
std::string Rewritten(const RanConfig& ran, const Json& asked);

}  // namespace dsat
