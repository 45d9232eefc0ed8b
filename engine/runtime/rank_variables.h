// The contract of launchers and ranks: the environment variables that launchers set and ranks read,
// and the largest number of ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace dsat::engine {

// Besides RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, as torch's launchers set them:
inline constexpr char kEnvToken[] = "DSAT_TOKEN";           // The secret of ranks on several hosts.
inline constexpr char kEnvReportKey[] = "DSAT_REPORT_KEY";  // For reports to another host (PEM).
inline constexpr char kEnvGroupFd[] = "DSAT_GROUP_FD";      // Memory file that the ranks share.
inline constexpr char kEnvNumThreads[] = "DSAT_NUM_THREADS";  // Compute threads of this rank.

// The variables of a process that computes with `num_threads` threads.
inline std::map<std::string, std::string> ThreadVariables(int64_t num_threads) {
  const std::string number = std::to_string(num_threads);
  // Waiting threads leave the core to those that work.
  return {{kEnvNumThreads, number}, {"OMP_NUM_THREADS", number}, {"OMP_WAIT_POLICY", "PASSIVE"}};
}

// How many ranks one host may have: more of them than cores are legal and slow.
inline constexpr int kMostRanksOfHost = 256;

}  // namespace dsat::engine
