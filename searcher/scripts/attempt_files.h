// The files of an attempt with the user's command: the config that dsat writes for the script, and
// the reports and logs that the ranks leave.
#ifndef DSAT_SEARCHER_SCRIPTS_ATTEMPT_FILES_H_
#define DSAT_SEARCHER_SCRIPTS_ATTEMPT_FILES_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "searcher/launch/launch_request.h"
#include "searcher/scripts/hook_report.h"

namespace dsat {

// Paths are absolute. A file that another process is still writing is read as if it were not there.
struct AttemptFiles {
  // `logs` is "rank" if dsat starts the ranks, and "host" if a launcher does on each host.
  AttemptFiles(const LaunchRequest& request, std::string logs);
  std::string hook(int64_t rank) const;
  // rank<N>.log or host<N>.log. The logs of all functions below are those of N.
  std::string log(int64_t number) const;

  // The reports of the ranks, in their order; empty if rank 0 has written none.
  std::vector<HookReport> ReadReports(int64_t num_ranks) const;
  // The end of a log, where the cause of a failure is.
  std::string ReadLogEnd(int64_t number) const;

  std::filesystem::path dir;
  std::string logs, config;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_ATTEMPT_FILES_H_
