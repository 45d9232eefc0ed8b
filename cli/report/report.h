// The content of a report of an experiment.
#pragma once

#include <map>
#include <string>

#include "cli/output/output.h"
#include "db/store.h"
#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/search/experiment.h"
#include "searcher/search/verdict.h"

namespace dsat::cli {

// The most trials that are shown, so that the file can be mailed. The page says what is left out.
inline constexpr size_t kMostTrials = 2000;
// Only the beginning of a longer text, such as a reason, is shown.
inline constexpr size_t kMostCharacters = 4000;

// Seconds since the first trial was asked for, or that the search had run.
struct Span {
  double from = 0;
  double to = 0;
};

struct Report {
  ExperimentSpec spec;
  ExperimentRow row;
  std::string state;      // For people: "completed", "interrupted", ...
  std::string db;         // The path of the database.
  std::string made_at;    // UTC.
  int64_t refresh_s = 0;  // The page of a search that runs loads itself again after this time.
  // The folder with the results of the search, absolute, and whether its ds_config.json is there.
  std::string out_dir;
  bool has_results = false;
  // By number. If there are more than kMostTrials, those of the answer and the first others.
  std::map<TrialId, Trial> trials;
  size_t num_left_out = 0;
  std::map<TrialId, Span> spans;  // When trials ran, as far as it is known.
  // Null if the log does not replay with this version; then there is no answer, and
  // `why_no_search` is the reason.
  const Search* search = nullptr;
  std::string why_no_search;
  Verdict verdict;  // VerdictOf(*search), or empty.

  // The config of a trial with the batch sizes of its best point, as far as it was measured.
  Json ConfigOf(const Trial& trial) const;
  // Says what a trial tries (DescribeTrial), its state and its measurement, in one line.
  std::string TitleOf(const Trial& trial) const;
  bool IsPick(TrialId id) const { return verdict.pick == id; }
};

// Reads an experiment of `store` for a report. `experiment` is nullptr if it does not replay; the
// caller then sets `why_no_search`. The result refers to the experiment.
Report ReadReport(const Store& store, ExperimentId id, const Experiment* experiment);

// The unit for all trials of a report.
ShownUnit UnitFor(const Report& report, const std::string& metric);

// The measured metric at the trial's best point; nullptr if there is none.
const Metric* MetricOf(const Report& report, const Trial& trial, const std::string& metric);

}  // namespace dsat::cli
