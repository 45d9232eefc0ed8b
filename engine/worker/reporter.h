// A rank's reports: to the search runner, or, if there is none, to the terminal.
#ifndef DSAT_ENGINE_WORKER_REPORTER_H_
#define DSAT_ENGINE_WORKER_REPORTER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "proto/client.h"
#include "proto/trial_task.h"

namespace dsat::engine {

class Reporter {
 public:
  // Says "starting" at once; the connection is made beside what the caller does next.
  Reporter(const TrialTask& task, const std::string& token, int rank);
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;
  ~Reporter();

  // Never blocks: a thread sends the newest progress, at most ten times a second, and the
  // last one in any case. A runner that does not answer is logged once; training goes on.
  void Progress(int64_t step, double latency_ms, double loss, const std::string& phase);
  // The mean loss over the validation data after `step` steps, from rank 0. Waits for the answer; a
  // runner that does not give one is logged.
  void Validated(int64_t step, double loss);
  // True once the runner has decided against this trial.
  bool stop_requested() const { return stop_requested_; }

  // From rank 0. Gives the next point to measure. Without a runner: one JSON line on stdout.
  std::optional<Point> Measured(const PointResult& result,
                                const std::optional<ModelProfile>& profile);
  // The reason, to the runner and to the log. Does not throw: the caller is on its way out.
  void Infeasible(const std::string& reason);

 private:
  struct Sign {
    int64_t step = 0;
    double latency_ms = 0;
    double loss = 0;
    std::string phase = "starting";
  };

  void Run();
  bool Send(const Sign& sign);

  const int rank_;
  std::optional<TrialClient> client_;
  std::atomic<bool> stop_requested_ = false;
  bool unreachable_ = false;  // Logged already. Of the thread.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Sign> newest_ = Sign{};
  bool done_ = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_WORKER_REPORTER_H_
