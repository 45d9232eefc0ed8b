// Shows the progress of a search on stderr: a line per finished trial and, on a terminal, a live
// status line below.
#ifndef DSAT_CLI_PROGRESS_H_
#define DSAT_CLI_PROGRESS_H_

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "searcher/experiment.h"
#include "searcher/runner.h"

namespace dsat::cli {

class ProgressDisplay {
 public:
  // `live`: redraw a status line (stderr is a terminal).
  explicit ProgressDisplay(bool live);
  // Leaves the cursor on a new line.
  ~ProgressDisplay();

  void OnEvent(const Experiment& experiment, const RunnerEvent& event);

 private:
  void PrintLine(const std::string& line);
  void DrawStatus(const Experiment& experiment);

  bool live_;
  bool status_shown_ = false;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  int64_t ended_ = 0;
  std::map<TrialId, int64_t> steps_;  // The last step of running trials.
};

// Writes `text` and does not throw: work does not end because nobody can be told of it. main()
// notices what standard output did not take.
void Say(std::FILE* out, const std::string& text);

// The number of columns of the terminal of a file descriptor, 0 if it is not a terminal.
size_t TerminalColumns(int fd);

// Joins those of `parts`, in order, that fit into `columns` of a terminal, because a status line
// that wraps cannot be redrawn. Parts that do not fit are skipped.
std::string FitStatus(const std::vector<std::string>& parts, size_t columns);

}  // namespace dsat::cli

#endif  // DSAT_CLI_PROGRESS_H_
