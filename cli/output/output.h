// Formats results as text and JSON for the commands that print them.
#ifndef DSAT_CLI_OUTPUT_OUTPUT_H_
#define DSAT_CLI_OUTPUT_OUTPUT_H_

#include <string>

#include "base/json.h"
#include "db/store.h"
#include "searcher/search/experiment.h"

namespace dsat::cli {

// Whether a search runner is at work on an experiment, as far as this machine knows.
bool IsRunning(const Store& store, const ExperimentRow& row);
// The state of an experiment for people: "interrupted" if it is active and its runner has died.
std::string StateText(const Store& store, const ExperimentRow& row);

// "reduce_bucket_size=5e8 overlap_comm=true": the settings of `assignment` that are not in
// `without`. The stage and the micro-batch size are none, because tables have columns for them.
std::string SettingsText(const Assignment& assignment, const Assignment& without = {});

// The answer in short, the profile, the ranking of all trials and the details of the answer.
// Settings are wrapped at `columns`; 0 = one line per trial.
std::string SummaryText(const Experiment& experiment, size_t columns);
// The same as JSON.
Json SummaryJson(const Experiment& experiment, const std::string& out_dir);
// One trial as JSON: id, kind, state, reason, assignment, ds_config, confirms? (of a
// trial that ran another's configuration again), and of its best point by the experiment's metric:
// metrics, losses by step and rank_peak_bytes, null where not known. The batch sizes in assignment
// and ds_config are those of that point.
Json TrialJson(const Search& search, TrialId id);

}  // namespace dsat::cli

#endif  // DSAT_CLI_OUTPUT_OUTPUT_H_
