// Formats results as text and JSON for the commands that print them.
#ifndef DSAT_CLI_OUTPUT_H_
#define DSAT_CLI_OUTPUT_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "db/store.h"
#include "searcher/experiment.h"
#include "searcher/verdict.h"

namespace dsat::cli {

// Whether a search runner is at work on an experiment, as far as this machine knows.
bool IsRunning(const Store& store, const ExperimentRow& row);
// The state of an experiment for people: "interrupted" if it is active and its runner has died.
std::string StateText(const Store& store, const ExperimentRow& row);

// A line of the answer: "factor" and "1.44 times the samples/s of the submitted configuration ...".
struct AnswerLine {
  std::string name;
  std::string text;
};

// "1.44 times", or "at least 1.08 times" if the gain is_vague().
std::string TimesText(const Factor& factor);
// " (95 % interval 1.08 to 1.12)", "" if there is none.
std::string IntervalText(const Factor& factor);

// What a person needs to decide: the pick, its factor, how sure it is, its cost, its memory. Empty
// if there is no pick. `verdict` is VerdictOf(search).
std::vector<AnswerLine> AnswerLines(const Search& search, const Verdict& verdict);
// Whether tables list the key among the settings: the stage and the micro-batch size have columns.
bool IsSetting(const std::string& pointer);

// The submitted config as a trial resolves it.
Json SubmittedConfig(const ExperimentSpec& spec);

// The ranking of all trials, the profile and the factor over the submitted configuration. Settings
// are wrapped at `columns`; 0 = one line per trial.
std::string SummaryText(const Experiment& experiment, size_t columns);
// The same as JSON.
Json SummaryJson(const Experiment& experiment, const std::string& out_dir);
// One trial as JSON: id, kind, state, reason, assignment, ds_config, confirms? (of a
// trial that ran another's configuration again), and of its best point by the experiment's metric:
// metrics, losses by step and rank_peak_bytes, null where not known. The batch sizes in assignment
// and ds_config are those of that point.
Json TrialJson(const Search& search, TrialId id);

}  // namespace dsat::cli

#endif  // DSAT_CLI_OUTPUT_H_
