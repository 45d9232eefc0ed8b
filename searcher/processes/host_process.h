// One supervisor as the runner sees it: its process, or that of the command that reaches its host,
// and the line to it.
#ifndef DSAT_SEARCHER_PROCESSES_HOST_PROCESS_H_
#define DSAT_SEARCHER_PROCESSES_HOST_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "searcher/hosts/launch_host.h"
#include "searcher/processes/supervise_wire.h"

namespace dsat {

// Not thread-safe. Destroying it closes the line, which ends all that runs below the supervisor,
// and waits for the end.
class HostProcess {
 public:
  // Starts `<dsat_binary> supervise` on `host`. Throws if the process cannot be started; a host
  // that cannot be reached is a line that ends.
  HostProcess(const LaunchHost& host, const std::string& dsat_binary);
  HostProcess(HostProcess&& other) noexcept;
  HostProcess& operator=(HostProcess&&) = delete;
  ~HostProcess();

  // Readable when Next may have something.
  int fd() const { return line_.fd(); }
  void Send(const Json& message) { line_.Send(message); }
  // To a supervisor on another host, now and then: that its runner is alive.
  void SayAlive();
  // The next message that has arrived; does not block. nullopt with ended(): there is no more.
  std::optional<Json> Next();
  bool ended() const { return ended_; }
  // Waits for the end of the process. Its exit code, 128 + signal if it was killed. REQUIRES:
  // ended().
  int Collect();
  // Why there was no report, in words; for a process that has been collected.
  std::string WhyNoReport() const;
  // "host worker-1: " before words of another host; "" for this one's.
  std::string Prefix() const { return remote_ ? "host " + name_ + ": " : ""; }

 private:
  std::string name_;
  bool remote_;
  std::string binary_;
  UniqueFd errors_;  // What the command that reaches the host says on standard error.
  LineChannel line_;
  pid_t pid_ = -1;  // -1: collected.
  int exit_code_ = 0;
  bool ended_ = false;
  std::chrono::steady_clock::time_point said_alive_ = std::chrono::steady_clock::now();
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_HOST_PROCESS_H_
