// A stand-in for both binaries that a runner starts, and a runner to be killed:
//   fake_trial supervise              as `dsat supervise`
//   fake_trial run DB ID OUT SLOTS    a Runner over the experiment until it ends
//   fake_trial TASK.json              as dsat-trial, but behaving by a script
//
// The script is hyperparameters.model: {"script": {"3": ["crash", "ok"]}} makes the first attempt
// of trial 3 crash. The default is "ok", which gives one measurement, a function of the config.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "db/store.h"
#include "engine/runtime/rank_variables.h"
#include "proto/client.h"
#include "proto/training_step.h"
#include "proto/trial_task.h"
#include "searcher/processes/supervisor.h"
#include "searcher/runner.h"
#include "searcher/search/experiment.h"

namespace dsat {
namespace {

constexpr std::chrono::milliseconds kTick{20};

double NumberAt(const Json& config, const char* pointer, double otherwise) {
  const Json* value = FindAtPointer(config, pointer);
  return value == nullptr ? otherwise : value->get<double>();
}

// Peaks at micro-batch 6 of stage 1, so that a search has something to find.
Measurement FakeMeasurement(const Json& config) {
  const double micro_batch = NumberAt(config, "/train_micro_batch_size_per_gpu", 1);
  const double stage = NumberAt(config, "/zero_optimization/stage", 0);
  const double throughput = 100 / (1 + std::abs(micro_batch - 6) + std::abs(stage - 1));
  return {{"throughput", {throughput, 0, 3}},
          {"FLOPS_per_gpu", {throughput * 1e9, 0, 3}},
          {"latency", {1000 / throughput, 0, 3}}};
}

std::string Behavior(const TrialTask& task) {
  const Json script = task.model.value("script", Json::object());
  const auto attempts = script.find(std::to_string(task.trial));
  if (attempts == script.end()) return "ok";
  const auto index = static_cast<size_t>(task.attempt);
  return attempts->at(std::min(index, attempts->size() - 1)).get<std::string>();
}

// One line with the process id per start ("+") and end ("-") of a trial, appended as one write
// each.
void Note(const TrialTask& task, char what) {
  const std::string path = task.model.at("journal").get<std::string>();
  const std::string line = fmt::format("{}{}\n", what, getpid());
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line.data(), line.size()) < 0) ThrowErrno(path, errno);
  close(fd);
}

[[noreturn]] void SleepForever() {
  while (true)
    pause();
}

void Report(const TrialTask& task, TrialClient& client) {
  std::optional<ModelProfile> profile;
  if (task.mode == TrialTask::Mode::kProfile) {
    profile = ModelProfile{1000000, 1000000, 1 << 20, int64_t{1} << 28, 1000000};
  }
  client.Measured({{1, 1}, FakeMeasurement(task.ds_config)}, profile);
}

void RecordStep(const TrialTask& task, int64_t step) {
  const TrainingStep line = {
      .step = step, .loss = 1.0 / static_cast<double>(step), .latency_ms = 5};
  std::ofstream(task.history_path, std::ios::app) << ToJson(line).dump() + "\n";
}

int Train(const TrialTask& task, TrialClient& client) {
  for (int64_t step = 2; step <= task.train_steps; ++step) {
    RecordStep(task, step);
    if (client.Progress(0, step)) return 0;
  }
  return 0;
}

int Behave(const TrialTask& task, TrialClient& client, const std::string& behavior) {
  if (behavior == "silent") return 0;
  if (behavior == "mute") SleepForever();
  if (task.mode == TrialTask::Mode::kTrain) {
    RecordStep(task, 1);
    client.Progress(0, 0, /*begins=*/true);
  }
  client.Progress(0, 1);
  if (behavior == "crash") {
    std::fprintf(stderr, "the fake crashes as told\n");
    return 1;
  }
  if (behavior == "crash by full disk") {
    std::fprintf(stderr, "/out/checkpoint/tmp: No space left on device\n");
    return 1;
  }
  if (behavior == "no memory") {
    std::fprintf(stderr, "host memory: the system has no 950.0 KiB for parameters\n");
    return 1;
  }
  if (behavior == "segv") {
    signal(SIGSEGV, SIG_DFL);  // A sanitizer would turn it into an exit.
    raise(SIGSEGV);
  }
  if (behavior == "hang") SleepForever();
  if (behavior == "infeasible") {
    client.Infeasible(0, "out of device memory: needs 3 GiB of 2 GiB");
    return kExitInfeasible;
  }
  if (behavior == "full disk") {
    client.Infeasible(0, "cannot write a checkpoint: No space left on device");
    return kExitInfeasible;
  }
  if (behavior == "full nvme_path") {
    client.Infeasible(0,
                      "/zero_optimization/offload_optimizer/nvme_path: scratch file in /fast: "
                      "No space left on device");
    return kExitInfeasible;
  }
  if (behavior == "infeasible by exit") {
    std::fprintf(stderr, "out of device memory\n");
    return kExitInfeasible;
  }
  for (int64_t step = 2; behavior == "endless"; ++step) {
    client.Progress(0, step);
    std::this_thread::sleep_for(kTick);
  }
  if (task.mode == TrialTask::Mode::kTrain) return Train(task, client);
  std::this_thread::sleep_for(kTick);
  if (behavior == "no profile") {
    client.Measured({{1, 1}, FakeMeasurement(task.ds_config)}, std::nullopt);
    return 0;
  }
  Report(task, client);
  if (behavior == "crash after") abort();
  if (behavior == "linger") std::this_thread::sleep_for(std::chrono::seconds(20));
  return 0;
}

std::string KeyOfReports() {
  const char* const key = std::getenv(engine::kEnvReportKey);
  return key != nullptr ? key : "";
}

int TrialMain(const std::string& task_path) {
  const TrialTask task = TrialTaskFromJson(ReadJsonFile(task_path));
  if (std::string(std::getenv("RANK")) != "0") return 0;
  TrialClient client = TrialClient::Connect(task.report_address, KeyOfReports(),
                                            {task.experiment, task.trial, task.attempt});
  Note(task, '+');
  const int code = Behave(task, client, Behavior(task));
  Note(task, '-');
  return code;
}

int RunMain(char** argv) {
  Store store = Store::Open(argv[2], Store::Mode::kReadWrite);
  Experiment experiment = Experiment::Open(store, std::stoll(argv[3]));
  RunnerOptions options;
  options.dsat_binary = options.trial_binary = argv[0];
  options.out_dir = argv[4];
  options.num_slots = std::stoll(argv[5]);
  Runner runner(experiment, options, nullptr);
  return runner.Run() == ExperimentState::kCompleted ? 0 : 1;
}

}  // namespace
}  // namespace dsat

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "supervise") dsat::SuperviseMain();
  try {
    if (command == "run" && argc == 6) return dsat::RunMain(argv);
    return dsat::TrialMain(command);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fake_trial: %s\n", error.what());
    return 1;
  }
}
