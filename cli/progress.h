// What a search shows while it runs: on a terminal a line per finished trial above a live status
// line, otherwise plain lines. Everything goes to stderr; stdout belongs to results.
#ifndef DSAT_CLI_PROGRESS_H_
#define DSAT_CLI_PROGRESS_H_

#include <chrono>
#include <map>
#include <string>

#include "searcher/experiment.h"
#include "searcher/runner.h"

namespace dsat::cli {

class ProgressDisplay {
 public:
  // `live`: redraw a status line (stderr is a terminal).
  explicit ProgressDisplay(bool live);
  // Leaves the cursor on a fresh line.
  ~ProgressDisplay();

  void OnEvent(const Experiment& experiment, const RunnerEvent& event);

 private:
  void PrintLine(const std::string& line);
  void DrawStatus(const Experiment& experiment);

  bool live_;
  bool status_shown_ = false;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::map<TrialId, int64_t> steps_;  // Of running trials.
  int64_t ended_ = 0;
};

// "stage 2, micro-batch 16" of a trial's config.
std::string DescribeConfig(const Trial& trial);
// "132.1 samples/s", "41.2 GFLOP/s", "35.0 ms", "310.0 MiB": a metric's value for people.
std::string DescribeMetric(const std::string& metric, double value);
// The model, the device and what fits: the profile and, per stage, predicted memory and
// micro-batch.
std::string DescribeProfile(const Experiment& experiment);

}  // namespace dsat::cli

#endif  // DSAT_CLI_PROGRESS_H_
