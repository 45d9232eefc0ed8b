// Measures the search itself without trials: pairs of ask and tell per second in memory and through
// the log, and the time to reopen an experiment. Usage: bench_ask_tell [FOLDER]
// (default: the folder for temporary files). `bench_ask_tell --grow METHOD TRIALS FILE` makes a
// database with one experiment of so many trials, as the service does, and measures how the time of
// a pair grows. bench/ask_tell adds the command line. A decision of auto takes longer than those of
// the others, so that auto has fewer trials.
//
// Targets: thousands of pairs per second with the file open, on disk and in /dev/shm; less than
// 100 ms to open 1000 events; the time per pair does not grow from 500 to 5000 trials.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/rng.h"
#include "methods/methods.h"
#include "searcher/search/experiment.h"
#include "searcher/search/search.h"

namespace dsat {
namespace {

ExperimentSpec Spec(const std::string& method, int64_t max_trials, int64_t at_once = 1) {
  ExperimentSpec spec;
  spec.name = "bench";
  spec.method = method;
  spec.entrypoint = {"builtin"};
  spec.slots_per_trial = 2;
  spec.ds_config = {{"train_micro_batch_size_per_gpu", 2},
                    {"bf16", {{"enabled", true}}},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
                    {"zero_optimization", {{"stage", 1}}}};
  spec.profile = ModelProfile{.num_params = 6'000'000'000,
                              .trainable_num_params = 6'000'000'000,
                              .activation_bytes_per_sample = 1'000'000'000,
                              .device_memory_bytes = 150'000'000'000,
                              .forward_flops_per_sample = 1'000'000};
  spec.options.max_trials = max_trials;
  spec.options.max_concurrent_trials = at_once;
  return spec;
}

struct Ending {
  Outcome outcome;
  Measurement measurement;  // Empty unless it succeeded.
};

// Larger micro-batches are faster until memory runs out, which happens earlier at low stages.
Ending EndOf(const Trial& trial) {
  const int stage = trial.ds_config.at("/zero_optimization/stage"_json_pointer).get<int>();
  const double size = static_cast<double>(ConfigPoint(trial).micro_batch_size);
  if (size > 12 + 8 * stage) return {{TrialState::kInfeasible, "out of memory"}, {}};
  const double throughput = (100 - 10 * stage) * size / (4 + size);
  Measurement measurement;
  for (const std::string& metric : SearchMetrics())
    measurement[metric] = {.value = throughput, .spread = 1, .samples = 3};
  return {{TrialState::kSucceeded, ""}, measurement};
}

// Processor time is meaningful also on a machine that does other work.
struct Time {
  double seconds = 0;
  double processor_seconds = 0;  // The time of all threads.
};

Time TimeOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t processor_start = std::clock();
  work();
  const std::clock_t processor_end = std::clock();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  return {passed.count(), static_cast<double>(processor_end - processor_start) / CLOCKS_PER_SEC};
}

void Report(const std::string& what, size_t pairs, const Time& time) {
  fmt::print("{:<44} {:>6} pairs {:>8.3f} s {:>8.0f} pairs/s, {:.0f} us of CPU time each\n", what,
             pairs, time.seconds, static_cast<double>(pairs) / time.seconds,
             1e6 * time.processor_seconds / static_cast<double>(pairs));
  std::fflush(stdout);
}

// Keeps `at_once` trials running and always ends the oldest one.
void RunSearch(const std::string& method, int64_t max_trials, int64_t at_once) {
  Search search(Spec(method, max_trials, at_once));
  TrialId oldest = 0;
  const Time time = TimeOf([&] {
    while (!search.Finished()) {
      if (search.Ask() || search.Finished()) continue;
      const Trial& trial = search.trials().at(oldest);
      const Ending ending = EndOf(trial);
      search.Tell(oldest++, ending.outcome, {{ConfigPoint(trial), ending.measurement}}, {});
    }
  });
  Report(fmt::format("search in memory, {}, {} at once", method, at_once), search.trials().size(),
         time);
}

void RunExperiment(const std::string& what, Store store, int64_t max_trials) {
  Experiment experiment = Experiment::Create(store, Spec("random", max_trials));
  size_t pairs = 0;
  const Time time = TimeOf([&] {
    for (; std::optional<Trial> trial = experiment.Ask(); ++pairs) {
      const Ending ending = EndOf(*trial);
      std::vector<PointResult> points;
      if (!ending.measurement.empty()) points = {{ConfigPoint(*trial), ending.measurement}};
      experiment.TellExternal(trial->id, ending.outcome, points, {});
      experiment.FinishIfDone();
    }
  });
  Report(what, pairs, time);
}

// Measures opening the file and replaying the log of an experiment with about `num_events` events.
void RunOpen(const std::string& database, const std::string& method, int64_t num_events) {
  ExperimentId id = 0;
  {
    Store store = Store::Open(database, Store::Mode::kCreate);
    Experiment experiment = Experiment::Create(store, Spec(method, num_events));
    id = experiment.id();
    while (experiment.store().Events(id).size() < static_cast<size_t>(num_events)) {
      const std::optional<Trial> trial = experiment.Ask();
      if (!trial) break;
      const Ending ending = EndOf(*trial);
      std::vector<PointResult> points;
      if (!ending.measurement.empty()) points = {{ConfigPoint(*trial), ending.measurement}};
      experiment.TellExternal(trial->id, ending.outcome, points, {});
    }
  }
  std::optional<Store> store;
  const Time open = TimeOf([&] { store = Store::Open(database, Store::Mode::kReadWrite); });
  const size_t events = store->Events(id).size();
  const Time replay = TimeOf([&] { Experiment::Open(*store, id); });
  fmt::print(
      "open {:<39} {:>6} events {:>7.1f} ms the file, {:.1f} ms the replay ({:.1f} ms of "
      "CPU time)\n",
      method, events, 1e3 * open.seconds, 1e3 * replay.seconds, 1e3 * replay.processor_seconds);
}

constexpr size_t kAtOnce = 16;  // The trials of a grown experiment that run at the same time.

// As EndOf, on a machine that is rough and noisy: each setting of the knobs has a factor of its
// own, so that no method is sure of the best one early.
Ending RoughEndOf(const Trial& trial) {
  Ending ending = EndOf(trial);
  Assignment knobs = trial.assignment;
  knobs.erase(kMicroBatchKey);
  knobs.erase(kAccumulationKey);
  const double rough = Rng(1, StableHash(Json(knobs).dump()), "rough").Normal();
  const double noise = Rng(1, static_cast<uint64_t>(trial.id), "noise").Normal();
  for (auto& [name, metric] : ending.measurement)
    metric.value *= std::exp(0.1 * rough + 0.03 * noise);
  return ending;
}

// Asks for trials until `kAtOnce` run, and tells the oldest one, as the clients of a service do.
// Returns false once the search has ended.
bool RunPair(Experiment& experiment, std::deque<Trial>& running) {
  while (running.size() < kAtOnce) {
    const std::optional<Trial> trial = experiment.Ask();
    if (experiment.FinishIfDone()) return false;
    if (!trial) break;
    running.push_back(*trial);
  }
  const Trial oldest = running.front();
  running.pop_front();
  const Ending ending = RoughEndOf(oldest);
  std::vector<PointResult> points;
  if (!ending.measurement.empty()) points = {{ConfigPoint(oldest), ending.measurement}};
  experiment.TellExternal(oldest.id, ending.outcome, points, {});
  return !experiment.FinishIfDone();
}

// Grows an experiment to so many trials, with a line whenever it has become twice as large, and
// measures the first pair of a process that opens it.
void Grow(const std::string& method, size_t num_trials, const std::string& database) {
  Store store = Store::Open(database, Store::Mode::kCreate);
  Experiment experiment =
      Experiment::Create(store, Spec(method, static_cast<int64_t>(num_trials) + 1, kAtOnce));
  std::deque<Trial> running;
  bool may_go_on = true;
  for (size_t size = std::min<size_t>(num_trials, 125); may_go_on && size <= num_trials;
       size = size < num_trials ? std::min(2 * size, num_trials) : num_trials + 1) {
    size_t pairs = 0;
    const size_t last = std::max<size_t>(size / 10, 10);
    while (may_go_on && experiment.search().trials().size() + last < size)
      may_go_on = RunPair(experiment, running);
    const Time time = TimeOf([&] {
      for (; may_go_on && experiment.search().trials().size() < size; ++pairs)
        may_go_on = RunPair(experiment, running);
    });
    Report(fmt::format("{}, the last of {} trials", method, experiment.search().trials().size()),
           std::max<size_t>(pairs, 1), time);
  }
  std::optional<Experiment> reopened;
  const Time first = TimeOf([&] {
    reopened.emplace(Experiment::Open(store, experiment.id()));
    RunPair(*reopened, running);
  });
  fmt::print("{}, the first pair after a restart {:.3f} s, {:.3f} s of CPU time; {} events\n",
             method, first.seconds, first.processor_seconds, store.Events(experiment.id()).size());
}

void Main(const std::filesystem::path& parent) {
  for (const MethodInfo& method : Methods()) {
    for (const int64_t at_once : {1, 8}) {
      if (method.name == "auto") {
        RunSearch(method.name, 64, at_once);
        continue;
      }
      for (const int64_t max_trials : {500, 5000})
        RunSearch(method.name, max_trials, at_once);
    }
  }
  RunExperiment("experiment, database in memory", Store::InMemory(), 2000);
  for (const std::filesystem::path& folder : {std::filesystem::path("/dev/shm"), parent}) {
    std::string own = (folder / "dsat-bench-XXXXXX").string();
    if (mkdtemp(own.data()) == nullptr) continue;
    RunExperiment("experiment, " + folder.string(),
                  Store::Open(own + "/experiment.db", Store::Mode::kCreate), 1000);
    for (const MethodInfo& method : Methods())
      RunOpen(own + "/" + method.name + ".db", method.name, method.name == "auto" ? 200 : 1000);
    std::filesystem::remove_all(own);
  }
}

}  // namespace
}  // namespace dsat

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
  if (folder == "--help") {
    fmt::print(
        "usage: bench_ask_tell [FOLDER]\n"
        "Measures pairs of ask and tell per second in memory and on disk.\n"
        "  FOLDER  where databases are made, besides /dev/shm (default: for temporary files)\n");
    return 0;
  }
  if (folder == "--grow" && argc == 5) {
    dsat::Grow(argv[2], std::stoull(argv[3]), argv[4]);
    return 0;
  }
  if (!std::filesystem::is_directory(folder)) {
    fmt::print(stderr, "bench_ask_tell: {}: no such folder; expected one for databases\n", folder);
    return 2;
  }
  try {
    dsat::Main(folder);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_ask_tell: {}\n", error.what());
    return 1;
  }
}
