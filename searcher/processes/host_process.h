// The runner's view of a supervisor: its process, or that of the command that reaches its host, and
// the connection to it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "searcher/processes/launch_host.h"
#include "searcher/processes/supervise_wire.h"

namespace dsat {

// Not thread-safe. The destructor closes the connection, which makes the supervisor end all its
// processes, and waits for its end.
class HostProcess {
 public:
  // Starts `<dsat_binary> supervise` on `host`. Throws if the process cannot be started. If the
  // host cannot be reached, the connection ends.
  HostProcess(const LaunchHost& host, const std::string& dsat_binary);
  HostProcess(HostProcess&&) noexcept = default;
  HostProcess& operator=(HostProcess&&) = delete;
  ~HostProcess();

  // Readable when Next may return a message.
  int fd() const { return line_.fd(); }
  void Send(const Json& message);
  // Tells the supervisor to end its ranks within `grace`. A supervisor that was stopped (SIGSTOP)
  // is continued; one that stays stopped, or has not ended after a further `frozen`, is killed by
  // Receive, with all processes below it.
  void Stop(std::chrono::milliseconds grace, std::chrono::milliseconds frozen);
  // Tells a supervisor on another host, from time to time, that its runner is alive.
  void SayAlive();
  // Receives what has arrived. Does not block.
  void Receive();
  // The next message received; nullopt if there is none, and after the last if ended().
  std::optional<Json> Next();
  bool ended() const { return ended_; }
  // Ends the connection after a message that no supervisor sends.
  void Refuse(const std::string& why);
  // Waits for the end of the process, and returns its exit code: 128 + signal if a signal has ended
  // it, 1 if it is killed here, because it takes too long or was refused. REQUIRES: ended().
  int Collect();
  // Why there was no report. REQUIRES: Collect was called.
  std::string WhyNoReport() const;
  // "host worker-1: " for messages of another host; "" for this one.
  std::string Prefix() const { return remote_ ? "host " + name_ + ": " : ""; }

 private:
  std::string name_;
  bool remote_;
  std::string binary_;
  UniqueFd errors_;  // The standard error of the command that reaches the host.
  LineChannel line_;
  // -1 after Collect, and of what was moved elsewhere.
  struct Pid {
    Pid() = default;
    Pid(Pid&& other) noexcept : value(std::exchange(other.value, -1)) {}
    pid_t value = -1;
  } pid_;
  int exit_code_ = 0;
  bool ended_ = false;
  bool greeted_ = false;         // A message of a supervisor has come.
  size_t other_text_bytes_ = 0;  // Received that is no message.
  std::string refused_;          // Why the connection was ended here; "" if it was not.
  std::chrono::steady_clock::time_point kill_at_ = std::chrono::steady_clock::time_point::max();
  std::chrono::steady_clock::time_point kill_if_stopped_at_ = kill_at_;
  std::chrono::steady_clock::time_point said_alive_ = std::chrono::steady_clock::now();
};

}  // namespace dsat
