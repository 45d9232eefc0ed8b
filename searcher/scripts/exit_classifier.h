// Why ranks ended: what their exit codes and the last words in their logs mean.
#ifndef DSAT_SEARCHER_SCRIPTS_EXIT_CLASSIFIER_H_
#define DSAT_SEARCHER_SCRIPTS_EXIT_CLASSIFIER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "searcher/processes/rank_command.h"

namespace dsat {

// What a line of a log says about the configuration or the machine.
struct LogFinding {
  TrialState state = TrialState::kFailed;  // kInfeasible: evidence against the configuration.
  std::string reason;                      // What happened, then the line that says so.
};

// The first of these that the text shows, in this order: an illegal configuration, a device out of
// memory, the host out of memory (all kInfeasible), a diverged loss scale, trouble with ports, the
// network or the disk (kFailed). nullopt if it shows none of them.
std::optional<LogFinding> ClassifyLog(std::string_view text);

// The outcome of ranks that ended without a result. `logs` are the ends of the ranks' logs by rank.
// The log of the rank that failed first is asked first; the others are asked for evidence against
// the configuration only, since most of what they say is the echo of the first failure.
Outcome ClassifyExit(const ExitReport& exit, const std::vector<std::string>& logs);

// "rank 1 exited with code 3: <last line>", "rank 0 was killed by signal 9 (Killed): <last line>".
// REQUIRES: a rank has failed.
std::string DescribeExit(const ExitReport& exit);

// True if the kernel killed the failed rank because host memory had run out.
bool KilledForHostMemory(const ExitReport& exit);

// The last line of `text` that is not blank, at most 300 bytes of it; "" if there is none.
std::string LastLine(std::string_view text);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_EXIT_CLASSIFIER_H_
