// The processes of one attempt: a supervisor process with rank processes below it.
//
//   runner ──fork──► dsat supervise (one per attempt) ──fork──► rank 0 .. rank P-1
//
// The supervisor is single-threaded, leads a session of its own and is a child subreaper. It ends
// all processes below it when a rank fails, when it is told to stop, and when the connection to the
// runner closes (Ctrl-C, kill -9), so that no process is orphaned. If the supervisor itself is
// killed, the kernel kills the ranks.
//
// Ranks on several hosts have a supervisor on each host, which is reached through ssh:
//
//   runner ──fork──► ssh worker-1 ──network──► dsat supervise ──fork──► rank 4 .. rank 7
//
// A rank that fails on one host ends those on the others, and so does a broken connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "searcher/processes/exit_report.h"
#include "searcher/processes/host_process.h"
#include "searcher/processes/launch_host.h"
#include "searcher/processes/rank_command.h"
#include "searcher/processes/supervise_wire.h"

namespace dsat {

// The running supervisors of an attempt. Destroying it kills them and their ranks and waits for
// their end. An object is used by one thread at a time; Start may be called in a multi-threaded
// process.
class SupervisedProcess {
 public:
  // Starts `<dsat_binary> supervise` on every host that has a rank, with the commands of its ranks,
  // which run in `work_dir`, an absolute path. A host that does not share `work_dir` uses a folder
  // of its own instead: paths below `work_dir` in commands and logs are changed, and the logs are
  // copied back. Throws if a supervisor, or the command that reaches its host, cannot be started. A
  // rank that cannot be started and a host that cannot be reached are reported as failed ranks.
  // REQUIRES: `ranks` is not empty.
  static SupervisedProcess Start(const std::string& dsat_binary,
                                 const std::vector<RankCommand>& ranks, const std::string& work_dir,
                                 const GraceTimes& grace = {},
                                 const std::vector<LaunchHost>& hosts = {{}});
  // A file descriptor that becomes readable when Poll has a new result.
  int fd() const { return news_.get(); }
  // The exit report once all processes of the attempt have ended; nullopt before. Does not block.
  // Must be called every few seconds, because it also tells supervisors on other hosts that the
  // runner is alive. Returns the same report when called again.
  std::optional<ExitReport> Poll();
  // Sends SIGTERM to the ranks, and SIGKILL after the grace time. Returns at once. A second call
  // can shorten the grace time but not lengthen it. A supervisor that does not react is killed
  // after grace.frozen, by Poll.
  void Stop(std::chrono::milliseconds grace);

 private:
  // The ranks of one host.
  struct Part {
    HostProcess process;
    int64_t host;            // An index of the hosts; -1: this machine.
    std::vector<int> ranks;  // The ranks that the supervisor numbers 0, 1, ...
    std::optional<SuperviseReport> report = {};
  };

  SupervisedProcess();
  void Hear(Part& part);
  void OnReport(Part& part, SuperviseReport ended);
  void OnFailure(const Part& part);
  const Part* Cause() const;
  ExitReport Merged() const;

  UniqueFd news_;  // An epoll descriptor of the connections.
  std::vector<Part> parts_;
  std::vector<std::string> log_paths_;  // By rank.
  std::chrono::milliseconds frozen_{0};
  const Part* first_failed_ = nullptr;  // The host whose rank is known to have failed first.
  std::optional<ExitReport> report_;
};

}  // namespace dsat
