// What a search shows while it runs: on a terminal a line per finished trial above a live status
// line, otherwise plain lines. Everything goes to stderr; stdout belongs to results.
#ifndef DSAT_CLI_PROGRESS_H_
#define DSAT_CLI_PROGRESS_H_

#include <chrono>
#include <string>
#include <vector>

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
  int64_t ended_ = 0;
};

// Columns of the terminal behind a file descriptor, 0 if there is none.
size_t TerminalColumns(int fd);

// As many of `parts`, in order, as fit into `columns` of a terminal: a status line that wrapped
// could not be redrawn. A part that does not fit is left out, later ones may still be there.
std::string FitStatus(const std::vector<std::string>& parts, size_t columns);

// "stage 2, micro-batch 16" of a trial's config.
std::string DescribeConfig(const Trial& trial);
// "132.1 samples/s", "41.2 GFLOP/s", "35.0 ms", "0.25 ms", "310.0 MiB": a metric's value for
// people.
std::string DescribeMetric(const std::string& metric, double value);
// The model, the device and what fits: the profile and, per stage, predicted memory and
// micro-batch.
std::string DescribeProfile(const Experiment& experiment);

}  // namespace dsat::cli

#endif  // DSAT_CLI_PROGRESS_H_
