// Connects to the hosts of a hostfile, on which ranks are started.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "searcher/hosts/hosts.h"
#include "searcher/processes/host_process.h"
#include "searcher/processes/launch_host.h"
#include "searcher/processes/supervise_wire.h"

namespace dsat {

// How hosts are reached, and the environment of their ranks.
struct HostAccess {
  std::string ssh = kDefaultSsh;  // A command line to which a host and its command are appended.
  std::string slurm_job = {};     // If given, srun reaches all hosts, which are nodes of this job.
  std::string master_addr = {};   // The first host's address; "" = the one by which ssh reaches it.
  // Variables of every rank, overridden by its own.
  std::map<std::string, std::string> environment = {};
};

struct ReachedHosts {
  std::vector<LaunchHost> hosts;
  std::string runner_address;  // This machine as seen by the other hosts; "" if there are none.
};

// Connects to hosts without blocking. Not thread-safe.
class HostReacher {
 public:
  // Arguments as ReachHosts.
  HostReacher(const std::vector<Host>& hosts, const HostAccess& access,
              const std::string& dsat_binary);

  // Waits at most `wait` for answers. nullopt if some have not arrived. Throws as ReachHosts.
  std::optional<ReachedHosts> Poll(std::chrono::milliseconds wait);

 private:
  // A host from which an answer is awaited.
  struct Question {
    LaunchHost* host;
    HostProcess process;
    std::optional<SuperviseHello> answer = {};
    std::string problem = {};

    bool open() const { return !answer && problem.empty(); }
    void Hear();
  };

  bool IsOpen() const { return std::ranges::any_of(questions_, &Question::open); }
  void Wait(std::chrono::milliseconds wait);
  void CheckAnswers() const;
  void Complete();

  HostAccess access_;
  ReachedHosts reached_;
  std::vector<Question> questions_;
  std::chrono::steady_clock::time_point deadline_;
};

// Connects to all hosts in parallel. "localhost" and this machine's own name are this machine,
// which needs no ssh. Throws kUnavailable naming every host that cannot be reached, does not answer
// within a minute or has no dsat at the path of this one; kFailedPrecondition if a host has another
// version.
ReachedHosts ReachHosts(const std::vector<Host>& hosts, const HostAccess& access,
                        const std::string& dsat_binary);

}  // namespace dsat
