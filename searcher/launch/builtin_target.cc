// dsat's own engine as a launch target: one dsat-trial process per rank, reporting by gRPC.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "proto/trial_task.h"
#include "searcher/launch/exit_classifier.h"
#include "searcher/launch/launcher.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// Cores that this process may run on.
int64_t NumCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

Json ObjectAt(const Json& object, const char* key) {
  return object.contains(key) ? object.at(key) : Json::object();
}

TrialTask::Mode ModeOf(const LaunchRequest& request) {
  if (request.full_run) return TrialTask::Mode::kTrain;
  return request.kind == TrialKind::kProfile ? TrialTask::Mode::kProfile
                                             : TrialTask::Mode::kMeasure;
}

class BuiltinTarget : public LaunchTarget {
 public:
  BuiltinTarget(const ExperimentSpec& spec, std::string trial_binary)
      : spec_(spec), trial_binary_(std::move(trial_binary)) {}

  std::vector<RankCommand> Prepare(const LaunchRequest& request) override;
  Outcome Classify(const LaunchRequest& request, const ExitReport& exit) override;

 private:
  TrialTask MakeTask(const LaunchRequest& request) const;

  ExperimentSpec spec_;
  std::string trial_binary_;
};

TrialTask BuiltinTarget::MakeTask(const LaunchRequest& request) const {
  TrialTask task;
  task.mode = ModeOf(request);
  task.experiment = request.experiment;
  task.trial = request.trial;
  task.attempt = request.attempt;
  task.ds_config = request.ds_config;
  task.model = ObjectAt(spec_.hyperparameters, "model");
  task.data = ObjectAt(spec_.hyperparameters, "data");
  task.base_dir = spec_.model_dir;
  task.device = spec_.device;
  task.device_memory_bytes = spec_.device_memory_bytes;
  task.host_memory_bytes = spec_.host_memory_bytes;
  task.start_profile_step = spec_.options.start_profile_step;
  task.end_profile_step = spec_.options.end_profile_step;
  task.seed = spec_.options.random_seed;
  task.report_address = request.report_address;
  if (task.mode == TrialTask::Mode::kTrain) {
    task.train_steps = spec_.max_length_steps;
    task.checkpoint_dir = fs::absolute(request.dir) / "checkpoint";
    task.checkpoint_interval = request.checkpoint_interval;
    task.eval_interval = request.eval_interval;
    task.trace = request.trace;
  }
  return task;
}

std::vector<RankCommand> BuiltinTarget::Prepare(const LaunchRequest& request) {
  const std::string task_path = fs::absolute(request.dir) / "task.json";
  WriteJsonFile(task_path, ToJson(MakeTask(request)));
  const int64_t num_ranks = spec_.slots_per_trial;
  const std::string num_ranks_text = std::to_string(num_ranks);
  const std::string num_threads = std::to_string(std::max<int64_t>(1, NumCores() / num_ranks));
  std::vector<RankCommand> commands;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const std::string rank_text = std::to_string(rank);
    RankCommand command;
    command.argv = {trial_binary_, task_path};
    command.env = {{"RANK", rank_text},
                   {"LOCAL_RANK", rank_text},
                   {"WORLD_SIZE", num_ranks_text},
                   {"LOCAL_WORLD_SIZE", num_ranks_text},
                   {kEnvToken, request.token},
                   {kEnvNumThreads, num_threads},
                   {"OMP_NUM_THREADS", num_threads},
                   // Waiting ranks leave the core to those that work.
                   {"OMP_WAIT_POLICY", "PASSIVE"}};
    for (const auto& [name, value] : spec_.environment)
      command.env[name] = value;
    command.log_path = fmt::format("{}/rank{}.log", request.dir, rank);
    commands.push_back(std::move(command));
  }
  return commands;
}

Outcome BuiltinTarget::Classify(const LaunchRequest& request, const ExitReport& exit) {
  if (exit.first_failed_rank < 0) {
    if (exit.killed_by_us) return {TrialState::kStopped, "stopped"};
    if (request.full_run) return {TrialState::kSucceeded, ""};
    return {TrialState::kFailed, "ended without a measurement"};
  }
  if (exit.exit_code == kExitInfeasible) {
    const std::string last = LastLine(exit.log_tail);
    return {TrialState::kInfeasible, last.empty() ? "the configuration cannot run here" : last};
  }
  if (KilledForHostMemory(exit)) {
    return {TrialState::kInfeasible,
            fmt::format("out of host memory: the kernel killed rank {}", exit.first_failed_rank)};
  }
  return {TrialState::kFailed, DescribeExit(exit)};
}

}  // namespace

std::unique_ptr<LaunchTarget> MakeBuiltinTarget(const ExperimentSpec& spec,
                                                const std::string& trial_binary) {
  return std::make_unique<BuiltinTarget>(spec, trial_binary);
}

}  // namespace dsat
