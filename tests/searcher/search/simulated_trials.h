// A simulated machine for tests: measurements are a pure function of the configuration.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "searcher/search/experiment.h"
#include "searcher/search/loss_check.h"
#include "tests/db/store_fixtures.h"

namespace dsat {

inline int64_t IntAt(const Json& config, const std::string& pointer, int64_t otherwise) {
  const Json* value = FindAtPointer(config, pointer);
  return value && value->is_number_integer() ? value->get<int64_t>() : otherwise;
}

// The end of a trial: larger micro-batches are faster until memory runs out, which happens earlier
// at low stages. A few trials crash.
struct Simulated {
  Outcome outcome;
  std::vector<PointResult> points;
  std::optional<ModelProfile> profile;
};

inline Simulated Simulate(const Trial& trial) {
  const Outcome success{TrialState::kSucceeded, ""};
  const int64_t stage = IntAt(trial.ds_config, "/zero_optimization/stage", 0);
  const int64_t micro_batch = IntAt(trial.ds_config, "/train_micro_batch_size_per_gpu", 1);
  const int64_t accumulation = IntAt(trial.ds_config, "/gradient_accumulation_steps", 1);
  if (trial.kind == TrialKind::kProfile) return {success, {}, SampleProfile()};
  if (micro_batch > 16 * (stage + 1)) return {{TrialState::kInfeasible, "out of memory"}, {}, {}};
  if (StableHash(trial.ds_config.dump()) % 7 == 0 && trial.kind == TrialKind::kSearch) {
    return {{TrialState::kFailed, "exit code 1"}, {}, {}};
  }
  const double throughput = 100.0 * static_cast<double>(micro_batch) / (4.0 + micro_batch) - stage;
  PointResult point = SamplePoint(throughput, micro_batch);
  point.point.accumulation_steps = accumulation;
  return {success, {point}, {}};
}

// Launches, measures and tells one running trial; a trial that fails is launched twice.
inline void RunTrial(Experiment& experiment, TrialId id) {
  const Simulated result = Simulate(experiment.search().trials().at(id));
  const int launches = result.outcome.state == TrialState::kFailed ? 2 : 1;
  while (experiment.NumAttempts(id) < launches ||
         (experiment.NumAttempts(id) > 0 && !experiment.Attempts(id).back().end)) {
    // An interrupted launch is repeated.
    const int64_t attempt = experiment.StartAttempt(id, "/logs/" + std::to_string(id));
    for (const PointResult& point : result.points) {
      experiment.RecordMeasured(id, attempt, point, std::nullopt);
    }
    if (result.profile) experiment.RecordMeasured(id, attempt, std::nullopt, result.profile);
    experiment.EndAttempt(id, attempt, result.outcome, "");
  }
  experiment.Tell(id, result.outcome);
}

// Runs one of the trials that have been asked for, in an order that mixes; false if there is none.
inline bool RunNext(Experiment& experiment) {
  const std::vector<TrialId> running = experiment.search().Running();
  if (running.empty()) return false;
  RunTrial(experiment, *std::ranges::min_element(running, {}, [](TrialId id) {
             return Rng(1, static_cast<uint64_t>(id), "order").NextU64();
           }));
  return true;
}

// Runs an experiment to its end with up to `at_once` trials running, told in an order that mixes.
inline void RunToEnd(Experiment& experiment, int64_t at_once) {
  do {
    while (static_cast<int64_t>(experiment.search().Running().size()) < at_once &&
           experiment.Ask()) {
    }
  } while (RunNext(experiment));
}

// A store that holds the events of a log.
inline Store Logged(const ExperimentSpec& spec, std::span<const Event> log) {
  Store store = Store::InMemory();
  store.CreateExperiment(spec);
  store.Append(1, 0, log);
  return store;
}

inline LossCurve Curve(double rate, int num_steps = 8) {
  LossCurve curve;
  for (int i = 0; i < num_steps; ++i)
    curve.push_back(4 * std::exp(-rate * i));
  return curve;
}

// How trials end: faster the larger the micro-batch, with the same losses. Tests change it.
struct SimulatedMachine {
  SimulatedMachine() = default;
  virtual ~SimulatedMachine() = default;
  virtual Outcome End(const Trial&) const { return {TrialState::kSucceeded, ""}; }
  virtual LossCurve Losses(const Trial&) const { return Curve(0.05); }
  virtual double Speed(const Point& point) const {
    return 100 + 10 * static_cast<double>(point.micro_batch_size);
  }
  virtual void Add(const Trial&, Measurement&) const {}

  void Run(Experiment& experiment, TrialId id) const {
    const Trial trial = experiment.search().trials().at(id);
    const bool profiles = trial.kind == TrialKind::kProfile;
    const int64_t attempt = experiment.StartAttempt(id, "/logs");
    const Outcome outcome = profiles ? Outcome{TrialState::kSucceeded, ""} : End(trial);
    if (profiles) {
      experiment.RecordMeasured(id, attempt, std::nullopt, SampleProfile());
    } else if (outcome.state == TrialState::kSucceeded) {
      const Point point = ConfigPoint(trial);
      PointResult result = SamplePoint(Speed(point), point.micro_batch_size);
      result.point = point;
      result.losses = Losses(trial);
      Add(trial, result.measurement);
      experiment.RecordMeasured(id, attempt, result, std::nullopt);
    }
    experiment.EndAttempt(id, attempt, outcome, "");
    const auto start = static_cast<double>(10 * id);
    experiment.Tell(id, outcome, {.started_s = start, .ended_s = start + 5});
  }
  // Runs until nothing is left, or the next trial is of kind `until`.
  std::optional<Trial> Drive(Experiment& experiment,
                             std::optional<TrialKind> until = std::nullopt) const {
    while (const std::optional<Trial> trial = experiment.Ask()) {
      if (trial->kind == until) return trial;
      Run(experiment, trial->id);
    }
    return std::nullopt;
  }
};

inline std::vector<Trial> TrialsOf(const Search& search, TrialKind kind) {
  std::vector<Trial> found;
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind == kind) found.push_back(trial);
  }
  return found;
}

inline ExperimentSpec SearchSpec(const std::string& method, int64_t max_trials = 12) {
  ExperimentSpec spec = SampleSpec();
  spec.method = method;
  spec.options.max_trials = max_trials;
  spec.options.max_concurrent_trials = 3;
  return spec;
}

}  // namespace dsat
