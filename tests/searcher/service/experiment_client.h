// A client of ExperimentService, as other programs have one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/trial.h"

namespace dsat {

// A program that drives an experiment with its own executors. Thread-safe. A call that fails throws
// an Error with gRPC's code.
class ExperimentClient {
 public:
  struct Asked {
    std::optional<Trial> trial;  // nullopt: none now; a running trial must be told first.
    bool finished = false;       // There will be no more trials.
  };
  struct View {
    std::string spec_json;  // As in the database (proto/experiment.h).
    std::string state;      // active, completed, failed, stopped
    std::vector<Trial> trials;
    std::optional<TrialId> best_trial;
  };

  // `address` and `key` as TrialClient's.
  static ExperimentClient Connect(const std::string& address, const std::string& key);
  ExperimentClient(ExperimentClient&&) noexcept;
  ExperimentClient& operator=(ExperimentClient&&) noexcept;
  ~ExperimentClient();

  Asked Ask(ExperimentId id);

  // Tells the end of a running trial. `measurement` is required if it succeeded, `profile` if a
  // profiling trial succeeded. Returns true if the search has finished. After kUnavailable or
  // kDeadlineExceeded it is unknown whether the tell was recorded; if it was, a second one throws
  // kFailedPrecondition.
  bool Tell(ExperimentId id, TrialId trial, const Outcome& outcome, const Measurement& measurement,
            const std::optional<ModelProfile>& profile);

  View GetExperiment(ExperimentId id);

 private:
  struct Impl;
  explicit ExperimentClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat
