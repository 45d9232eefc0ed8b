// Outcomes as functions of the configuration, and the loop that runs a search on them.
#include "tests/searcher/search/simulated_device.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace dsat {

ModelProfile SimulatedProfile() {
  return {.num_params = 6'000'000'000,
          .trainable_num_params = 6'000'000'000,
          .activation_bytes_per_sample = 1'000'000'000,
          .device_memory_bytes = 150'000'000'000,
          .forward_flops_per_sample = 1'000'000};
}

ExperimentSpec SimulatedSpec(const std::string& method) {
  ExperimentSpec spec;
  spec.name = "simulated";
  spec.method = method;
  spec.entrypoint = {"builtin"};
  spec.slots_per_trial = 2;
  spec.ds_config = {{"train_micro_batch_size_per_gpu", 2},
                    {"gradient_accumulation_steps", 2},
                    {"bf16", {{"enabled", true}}},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
                    {"zero_optimization",
                     {{"stage", 1}, {"reduce_bucket_size", 2e8}, {"allgather_bucket_size", 2e8}}}};
  return spec;
}

ExperimentSpec ConfirmedSpec(int64_t rounds) {
  ExperimentSpec spec = SimulatedSpec("binary");
  spec.options.max_trials = 10;
  spec.options.max_concurrent_trials = 1;
  spec.options.metric = "throughput";
  spec.options.confirm_rounds = rounds;
  return spec;
}

Ending Success(const Trial& trial, double value) {
  Ending ending;
  ending.outcome.state = TrialState::kSucceeded;
  if (trial.kind == TrialKind::kProfile) ending.profile = SimulatedProfile();
  Measurement measurement;
  for (const std::string& metric : SearchMetrics()) {
    measurement[metric] = {.value = value, .spread = 0, .samples = 3};
  }
  ending.points = {{.point = ConfigPoint(trial), .measurement = measurement}};
  return ending;
}

Ending Failure(TrialState state) {
  return {.outcome = {state, "simulated: " + ToString(state)}, .points = {}, .profile = {}};
}

Ending AllSucceed(const Trial& trial) {
  return Success(trial, static_cast<double>(trial.id));
}

Ending OnDevice(const Trial& trial, bool flaky) {
  if (trial.kind == TrialKind::kProfile) return Success(trial, 1);
  const int stage = trial.ds_config.at("/zero_optimization/stage"_json_pointer).get<int>();
  const auto size = trial.ds_config.at("train_micro_batch_size_per_gpu").get<int64_t>();
  const uint64_t config = StableHash(trial.ds_config.dump());
  if (flaky && config % 10 == 0) return Failure(TrialState::kFailed);
  if (flaky && config % 10 == 1) return Failure(TrialState::kStopped);
  const int64_t limit = 12 + 8 * stage;
  if (size > limit) return Failure(TrialState::kInfeasible);
  const double peak = 0.7 * static_cast<double>(limit);
  const double distance = std::abs(static_cast<double>(size) - peak) / peak;
  const double ripple = static_cast<double>(config % 1000) / 10000;
  return Success(trial, (100 - 10 * stage) / (1 + distance) + ripple);
}

EndTrial Device(SpeedOfTrial lucky, SpeedOfTrial truth) {
  return [lucky = std::move(lucky), truth = std::move(truth)](const Trial& trial) {
    if (trial.kind == TrialKind::kProfile) return Success(trial, 1);
    return Success(trial, trial.kind == TrialKind::kConfirm ? truth(trial) : lucky(trial));
  };
}

EndTrial NoisyDevice(double factor) {
  return Device([](const Trial& t) { return 100.0 + static_cast<double>(t.id); },
                [factor](const Trial& t) {
                  Rng rng(1, static_cast<uint64_t>(t.id), "noise");
                  return 100 * std::pow(factor, rng.Uniform());
                });
}

int64_t NumOf(const Search& search, TrialKind kind) {
  return std::ranges::count_if(search.trials(),
                               [kind](const auto& entry) { return entry.second.kind == kind; });
}

void Tell(Search& search, TrialId id, const Ending& ending) {
  search.Tell(id, ending.outcome, ending.points, ending.profile);
}

std::vector<SearchEvent> RunToEnd(Search& search, const EndTrial& end, uint64_t order) {
  std::vector<SearchEvent> events;
  Rng chance(order, 0, "order");
  while (!search.Finished()) {
    for (const Answered& answered : search.Settle())
      events.push_back({.asked = nullptr, .ending = {}, .answered = answered});
    if (const std::optional<Trial> trial = search.Start()) {
      events.push_back({.trial = trial->id, .asked = trial->ds_config, .ending = {}});
      continue;
    }
    if (search.Finished()) break;
    const std::vector<TrialId> running = search.Running();
    DSAT_CHECK(!running.empty(), "nothing runs, nothing is asked for, and it has not finished");
    const TrialId id = running[chance.Below(running.size())];
    const Ending ending = end(search.trials().at(id));
    Tell(search, id, ending);
    events.push_back({.trial = id, .asked = nullptr, .ending = ending});
  }
  return events;
}

}  // namespace dsat
