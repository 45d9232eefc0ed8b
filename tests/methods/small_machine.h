// Small machines whose best configuration is known, for the tests of the method auto.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "methods/auto.h"
#include "methods/auto_regression.h"
#include "tests/methods/method_testing.h"

namespace dsat {

inline constexpr int64_t kGb = 1'000'000'000;

// One machine: seconds of a step, and the largest sizes that fit.
struct Machine {
  SearchSpace space;
  SearchOptions options;
  int64_t largest = 24;     // At every stage.
  std::string misfit = {};  // The reason of a larger one.
  std::function<double(int stage, double size, double accumulation)> step_s;
  // The factor of the time of a step, by the values of knobs.
  std::function<double(const Assignment&)> factor = [](const Assignment&) { return 1.0; };
  double noise = 0.005;
  uint64_t seed = 7;
  double launch_s = 0;        // From the start of a trial to that of the next; 0: unknown times.
  double drift_per_hour = 0;  // By how much the logarithm of the time of a step grows.
};

inline double StepSeconds(int stage, double size, double accumulation) {
  return accumulation * 0.01 * (size + 4) * (1 + 0.04 * stage) + 0.02;
}

inline Machine SmallMachine(const std::vector<int>& stages = {0, 1, 2, 3}) {
  Machine machine{.space = TestSpace(stages, 20), .options = TestOptions(), .step_s = StepSeconds};
  machine.options.metric = "throughput";
  machine.space.workload = {.num_params = 100'000'000,
                            .trainable_num_params = 100'000'000,
                            .bytes_per_param = 2,
                            .data_parallel = 2,
                            .device_memory_bytes = 10 * kGb};
  for (StageSpace& stage : machine.space.stages) {
    stage.knobs = {{"/zero_optimization/reduce_bucket_size", {10'000'000, 100'000'000}}};
    for (const int64_t size : {1, 2, 4, 8, 16, 32})
      stage.forecasts.push_back(
          {.micro_batch_size = size, .peak_bytes = 2 * kGb + size * 33 * kGb / 100});
  }
  return machine;
}

inline double SampleSeconds(const Machine& machine, const Assignment& assignment) {
  const auto size = static_cast<double>(MicroBatchOf(assignment));
  const double accumulation = machine.space.samples_per_step > 0
                                  ? static_cast<double>(machine.space.samples_per_step) / size
                                  : 1;
  return machine.factor(assignment) * machine.step_s(StageOf(assignment), size, accumulation) /
         (size * accumulation);
}

inline Trial EndOf(const Machine& machine, const Assignment& assignment, TrialId id) {
  const int64_t size = MicroBatchOf(assignment);
  if (size > machine.largest) {
    Trial trial = EndedTrial(id, TrialState::kInfeasible);
    trial.reason = machine.misfit;
    return trial;
  }
  const double accumulation =
      machine.space.samples_per_step > 0
          ? static_cast<double>(machine.space.samples_per_step) / static_cast<double>(size)
          : 1;
  Rng rng(machine.seed, static_cast<uint64_t>(id), "noise");
  const double ended_s = machine.launch_s * static_cast<double>(id + 1);
  const double step_s =
      machine.step_s(StageOf(assignment), static_cast<double>(size), accumulation) *
      machine.factor(assignment) *
      std::exp(machine.noise * rng.Normal() + machine.drift_per_hour * ended_s / 3600);
  Trial trial = EndedTrial(id, TrialState::kSucceeded, 1);
  trial.times = {.started_s = ended_s - machine.launch_s, .ended_s = ended_s};
  trial.ds_config = {{"train_micro_batch_size_per_gpu", size},
                     {"gradient_accumulation_steps", static_cast<int64_t>(accumulation)},
                     {"zero_optimization", {{"stage", StageOf(assignment)}}}};
  const auto bucket = assignment.find("/zero_optimization/reduce_bucket_size");
  if (bucket != assignment.end())
    trial.ds_config["zero_optimization"]["reduce_bucket_size"] = bucket->second;
  trial.points[0].point = {.micro_batch_size = size,
                           .accumulation_steps = static_cast<int64_t>(accumulation)};
  const double samples = 2 * static_cast<double>(size) * accumulation;
  const double peak = 2e9 + 0.33e9 * static_cast<double>(size);
  trial.points[0].measurement = {{"latency", {1e3 * step_s, step_s, 3}},
                                 {"throughput", {samples / step_s, samples / step_s / 1e3, 3}},
                                 {"peak_bytes", {peak, 0, 1}}};
  return trial;
}

struct Searched {
  std::vector<Proposal> proposals;
  std::vector<Trial> trials;  // In the order of their ends.
  int64_t misfits = 0;
};

// Until the method stops, `concurrency` at once, oldest first.
inline Searched Search(const Machine& machine, Method& method, size_t concurrency,
                       size_t most = 200) {
  Searched run;
  std::deque<Proposal> running;
  while (run.proposals.size() < most) {
    std::optional<Proposal> proposal;
    if (running.size() < concurrency) proposal = method.Ask();
    if (proposal) {
      running.push_back(*proposal);
      run.proposals.push_back(*proposal);
      continue;
    }
    if (running.empty()) break;
    const Proposal ended = running.front();
    running.pop_front();
    const Trial trial = EndOf(machine, ended.assignment, 1 + ended.tag);
    run.misfits += trial.state == TrialState::kInfeasible ? 1 : 0;
    method.Tell(ended.tag, trial);
    run.trials.push_back(trial);
  }
  return run;
}

// The method auto, and its search on a machine until it stops.
struct AutoSearch {
  explicit AutoSearch(const Machine& machine, size_t concurrency = 1, size_t most = 200)
      : method(machine.space, machine.options), run(Search(machine, method, concurrency, most)) {}
  AutoMethod method;
  Searched run;
};

// A measurement of this launch.
inline AutoObservation Observe(const AutoConfig& config, double log_value, int64_t launch,
                               double variance = 1e-6) {
  AutoObservation observed;
  observed.point.config = config;
  observed.log_value = log_value;
  observed.variance = variance;
  observed.launch = launch;
  return observed;
}

// How much slower a configuration is than the best of the space.
inline double LossOf(const Machine& machine, const Assignment& picked) {
  double best = INFINITY;
  for (const StageSpace& stage : machine.space.stages) {
    for (int64_t size = 1; size <= machine.largest; ++size) {
      Assignment assignment = PlaceAssignment(stage);
      SetMicroBatch(assignment, size);
      if (machine.space.samples_per_step > 0 && machine.space.samples_per_step % size != 0)
        continue;
      if (size % machine.space.divisible_by != 0) continue;
      best = std::min(best, SampleSeconds(machine, assignment));
    }
  }
  return SampleSeconds(machine, picked) / best - 1;
}

// How much slower the conclusion is than the best of the space.
inline double LossOf(const Machine& machine, const Method& method, const Searched& run) {
  const Conclusion conclusion = method.Conclude();
  if (conclusion.finalists.empty()) return INFINITY;
  const auto picked = static_cast<size_t>(conclusion.finalists[0]);
  return LossOf(machine, run.proposals.at(picked).assignment);
}

}  // namespace dsat
