// Descriptions of trials, of a search's answer and of an experiment.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/statistics.h"
#include "db/store.h"
#include "proto/trial.h"
#include "searcher/search/experiment.h"
#include "searcher/search/search.h"
#include "searcher/search/verdict.h"

namespace dsat::cli {

// "stage 2, micro-batch 16": a trial's config at its best point by `metric`.
std::string DescribeConfig(const Trial& trial, const std::string& metric);
// Says what a trial tries: its config, or "profile", "as submitted", "confirms trial 3", ...
std::string DescribeTrial(const Trial& trial, const std::string& metric);
// The unit in which values up to `largest` of a metric are shown: value / scale is in `name`.
struct ShownUnit {
  std::string name;
  double scale = 1;
};
ShownUnit UnitFor(const std::string& metric, double largest);
// "132.1 samples/s", "41.2 GFLOP/s", "35.0 ms", "0.25 ms", "310.0 MiB": a metric's value
// with its unit.
std::string DescribeMetric(const std::string& metric, double value);
// The profile of the model and the device and, for each stage, the predicted memory and
// micro-batch. REQUIRES: search.profile().
std::string DescribeProfile(const Search& search);
// How much of the space is left out, as a line of its own; "" if nothing is. REQUIRES: as above.
std::string DescribeLeftOut(const Search& search);

// The one speed over the other, whose logarithms are given, with its interval (Welch 1947, "The
// Generalization of Student's Problem when Several Different Population Variances are Involved"). A
// speed without an error is taken to be that of a single launch; `rounds` is how many there are of
// the one.
Factor RatioOfSpeeds(const Center& one, const Center& other, int64_t rounds);
// " (1.08 to 1.12)", the 95 % interval; "" if there is none.
std::string IntervalText(const Factor& factor);

// The answer in one line: "1.39 times as fast as submitted (1.33 to 1.46), proven in 3 rounds".
// `verdict` is VerdictOf(search), here and below.
std::string Headline(const Search& search, const Verdict& verdict);

// The facts that a person decides by, the most important first: the headline, what changes, how it
// trains, how sure it is, its cost, and what else is to be known. Empty if there is no pick. `id`
// is the number of the experiment.
std::vector<std::string> AnswerSentences(const Search& search, const Verdict& verdict,
                                         ExperimentId id);
// The same in at most kMostSummaryLines lines of 80 columns; a longer word has a line of its own.
// `next` are commands for the end.
inline constexpr size_t kMostSummaryLines = 9;
std::string ShortAnswer(const Search& search, const Verdict& verdict, ExperimentId id,
                        const std::vector<std::string>& next = {});

// A detail of the answer: "soak" and "trial 37 ran 50 steps and saved checkpoints, ...".
struct AnswerLine {
  std::string name;
  std::string text;
};
// The details that the short answer leaves out or shortens. Empty if there is no pick.
std::vector<AnswerLine> AnswerLines(const Search& search, const Verdict& verdict);

// The submitted config as a trial resolves it.
Json SubmittedConfig(const ExperimentSpec& spec);

// Whether a search runner is at work on an experiment, as far as this machine knows.
bool IsRunning(const Store& store, const ExperimentRow& row);
// The state of an experiment for people: "interrupted" if it is active and its runner has died.
std::string StateText(const Store& store, const ExperimentRow& row);

// The folder of an experiment's results as it was started, absolute.
std::string ResultsFolder(const Experiment& experiment);

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
