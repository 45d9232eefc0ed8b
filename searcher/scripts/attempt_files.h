// The files of an attempt with the user's command: those that dsat writes for the script, and those
// that the script, DeepSpeed and the import hook leave.
#ifndef DSAT_SEARCHER_SCRIPTS_ATTEMPT_FILES_H_
#define DSAT_SEARCHER_SCRIPTS_ATTEMPT_FILES_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "searcher/launch/launch_request.h"
#include "searcher/scripts/deepspeed_metrics.h"
#include "searcher/scripts/ran_config.h"

namespace dsat {

// Paths are absolute. A file that another process is still writing is read as if it were not there.
struct AttemptFiles {
  // `logs` is "rank" if dsat starts the ranks, and "host" if a launcher does on each host.
  AttemptFiles(const LaunchRequest& request, std::string logs);
  std::string hook(int64_t rank) const;
  // rank<N>.log or host<N>.log. The logs of all functions below are those of N.
  std::string log(int64_t number) const;

  // Not an object unless the file is complete.
  Json ReadMetrics() const;
  Json ReadModelInfo() const;
  // DeepSpeed's lines of rank 0 with their times, as the supervisor has stamped them.
  std::vector<StepLine> ReadStepLines() const;
  // The reports of the import hook, by rank; empty if rank 0 has written none.
  std::vector<HookReport> ReadReports(int64_t num_ranks) const;
  // What rank 0 ran with, by the hook or by DeepSpeed's log.
  std::optional<RanConfig> ReadRan() const;
  // The end of a log, where the cause of a failure is.
  std::string ReadLogEnd(int64_t number) const;

  std::filesystem::path dir;
  std::string logs, config, metrics, model_info;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_ATTEMPT_FILES_H_
