// The commands of ranks that a supervisor gets.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dsat {

// The command of one rank, with its environment on top of ours.
struct RankCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::string log_path;  // stdout and stderr of this rank; an existing file is replaced,
                         // or continued with `continues_log`.
  std::string work_dir;  // "" = the one given to SupervisedProcess::Start.
  int64_t host = 0;      // Index of the hosts given to SupervisedProcess::Start.
  std::vector<std::string> files = {};  // Files in the attempt's folder that the rank reads. A host
                                        // that does not share the folder gets copies.
  bool continues_log = false;
  bool shares_folder = false;  // True if files that the rank writes there are needed here.
  // The MASTER_PORT of DeepSpeed's CPU collectives, 0 if it is unknown: when the ranks are gone,
  // the supervisor of their host removes the buffers (searcher/processes/leftovers.h).
  int64_t buffers_port = 0;
};

// How long processes may take to end by themselves.
struct GraceTimes {
  std::chrono::milliseconds siblings{2000};   // From a rank's failure to SIGTERM for the others.
  std::chrono::milliseconds terminate{2000};  // From SIGTERM to SIGKILL.
  // After this time without a message, a supervisor on another host assumes that the runner is
  // gone: a broken connection may not be noticed at either end.
  std::chrono::milliseconds silence{60'000};
  // From the end of the grace time of a stop to SIGKILL for a supervisor that has not ended: longer
  // than it tries to kill a process that hangs in the kernel.
  std::chrono::milliseconds frozen{25'000};
};

}  // namespace dsat
