// Shows the progress of a search on stderr: a line per finished trial and, on a terminal, a live
// status line below.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "cli/status_line.h"
#include "searcher/runner.h"
#include "searcher/search/experiment.h"

namespace dsat::cli {

class ProgressDisplay {
 public:
  void OnEvent(const Experiment& experiment, const RunnerEvent& event);

 private:
  void PrintLine(const std::string& line);
  void DrawStatus(const Experiment& experiment);
  std::string TimeLeft(const Search& search, int64_t ended) const;

  StatusLine status_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  int64_t ended_ = 0;
  std::map<TrialId, int64_t> steps_;  // The last step of running trials.
};

}  // namespace dsat::cli
