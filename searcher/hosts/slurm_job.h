// A job of Slurm for one attempt.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file_lock.h"
#include "searcher/hosts/hosts.h"
#include "searcher/hosts/reach_hosts.h"
#include "searcher/hosts/slurm.h"
#include "searcher/processes/launch_host.h"

namespace dsat {

// Waits in Slurm's queue, then holds the nodes. Slurm gets the job back, queued or running, when
// this object is destroyed. When this process ends in another way, the job stays for `keep` of
// SlurmJobs, and the next SlurmJob with the same path takes it up. Not thread-safe.
class SlurmJob {
 public:
  // Requests a job called `name`, or takes up the one that an ended process has requested with the
  // same path and words. PATH.log has the words of salloc, PATH.lock is there while the job is
  // wanted. Throws if no process can be started, and kFailedPrecondition if another process has the
  // job.
  SlurmJob(const SlurmJobs& jobs, const std::string& name, const std::string& dsat_binary,
           const std::string& path);
  // Waits a few seconds for Slurm to get the job back.
  ~SlurmJob();
  SlurmJob(const SlurmJob&) = delete;
  SlurmJob& operator=(const SlurmJob&) = delete;

  // The nodes when all have answered; nullopt before, and after they were returned. Does not wait
  // for nodes. Throws kUnavailable with Slurm's words if the request was refused or the job has
  // ended, or if a node does not answer; as ReachHosts. Throws as CheckHosts if trials cannot run
  // there.
  std::optional<std::vector<LaunchHost>> Poll();
  // The job's number, "" until Slurm has given one.
  const std::string& number() const { return number_; }
  // Whether it has to wait for resources, so far as Poll knows.
  bool queued() const { return queued_; }
  int64_t slots_per_trial() const { return jobs_.spec.slots_per_trial; }
  // Whether it was requested by an ended process.
  bool taken_up() const { return pid_ < 0; }
  // Gives the job back without waiting.
  void Release();

 private:
  using Clock = std::chrono::steady_clock;

  void Hear(const std::string& line);
  void HearLog();
  bool StepsEnded();

  SlurmJobs jobs_;
  std::string dsat_binary_;
  std::string log_;  // The path of the words of salloc.
  std::optional<FileLock> lock_;
  pid_t pid_ = -1;        // -1: an ended process has started it.
  size_t num_heard_ = 0;  // The bytes of the log that have been read.
  std::string said_;      // The first error of salloc, or else its last line.
  bool said_error_ = false;
  Clock::time_point released_at_;
  std::vector<Host> nodes_;  // Until they are reached.
  Clock::time_point steps_limit_;
  Clock::time_point next_look_;  // At the steps of an ended process.
  std::optional<HostReacher> reacher_;
  std::string number_;
  bool queued_ = false;
};

}  // namespace dsat
