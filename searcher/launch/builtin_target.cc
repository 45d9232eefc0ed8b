// dsat's own engine as a launch target: one dsat-trial process per rank, reporting by gRPC.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/files.h"
#include "engine/runtime/rank_variables.h"
#include "proto/launch_settings.h"
#include "proto/search_policy.h"
#include "proto/trial_task.h"
#include "searcher/launch/launch_target.h"
#include "searcher/launch/rank_places.h"
#include "searcher/processes/exit_report.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

TrialTask::Mode ModeOf(const LaunchRequest& request) {
  if (request.full_run) return TrialTask::Mode::kTrain;
  if (request.kind == TrialKind::kProfile) return TrialTask::Mode::kProfile;
  return request.kind == TrialKind::kSoak ? TrialTask::Mode::kSoak : TrialTask::Mode::kMeasure;
}

class BuiltinTarget : public LaunchTarget {
 public:
  BuiltinTarget(const ExperimentSpec& spec, std::string trial_binary)
      : spec_(spec), trial_binary_(std::move(trial_binary)) {}

  std::vector<RankCommand> Prepare(const LaunchRequest& request) override;
  Outcome Classify(const LaunchRequest& request, const ExitReport& exit) override;

 private:
  TrialTask MakeTask(const LaunchRequest& request) const;
  std::map<std::string, std::string> EnvironmentOf(const LaunchRequest& request,
                                                   const RankPlace& place) const;

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
  task.model = spec_.hyperparameters.value("model", Json::object());
  task.data = spec_.hyperparameters.value("data", Json::object());
  task.base_dir = spec_.model_dir;
  task.device = spec_.device;
  task.device_memory_bytes = spec_.device_memory_bytes;
  task.host_memory_bytes = spec_.host_memory_bytes;
  task.start_profile_step = spec_.options.start_profile_step;
  task.end_profile_step = spec_.options.end_profile_step;
  task.fixed_window = PolicyOf(spec_.options).fixed_window;
  task.give_up_below = request.give_up_below;
  task.seed = spec_.options.random_seed;
  task.report_address = request.report_address;
  if (task.mode == TrialTask::Mode::kSoak) {
    task.train_steps = request.steps;
    task.checkpoint_dir = SoakCheckpointDir(request);
  }
  if (task.mode == TrialTask::Mode::kTrain) {
    task.train_steps = spec_.max_length_steps;
    task.checkpoint_dir = fs::absolute(request.dir) / "checkpoint";
    task.training = request.training;
    task.history_path = fs::absolute(request.dir) / "metrics.jsonl";
    task.trace = request.trace;
  }
  return task;
}

// The environment of all ranks on one host.
std::map<std::string, std::string> BuiltinTarget::EnvironmentOf(const LaunchRequest& request,
                                                                const RankPlace& place) const {
  const LaunchHost& host = request.hosts[static_cast<size_t>(place.host)];
  std::map<std::string, std::string> env = host.environment;
  env["WORLD_SIZE"] = std::to_string(spec_.slots_per_trial);
  env["LOCAL_WORLD_SIZE"] = std::to_string(place.local_size);
  if (!request.report_key.empty()) env[engine::kEnvReportKey] = request.report_key;
  for (const auto& [name, value] :
       engine::ThreadVariables(std::max<int64_t>(1, host.num_cores / place.local_size)))
    env[name] = value;
  if (spec_.device != "cpu") env.merge(DeviceEnvironment(request, place.host));
  if (place.num_nodes > 1) {
    env.merge(MasterEnvironment(request));
    env[engine::kEnvToken] = request.token;
  }
  for (const auto& [name, value] : VariablesOf(request.ds_config, spec_.environment))
    env[name] = value;
  return env;
}

std::vector<RankCommand> BuiltinTarget::Prepare(const LaunchRequest& request) {
  const fs::path dir = fs::absolute(request.dir);
  const std::string task_path = dir / "task.json";
  WriteFileAtomic(task_path, ToJson(MakeTask(request)).dump(2) + "\n", /*waits_for_disk=*/false);
  std::vector<RankCommand> commands;
  for (const RankPlace& place : PlaceRanks(request, spec_.slots_per_trial)) {
    const auto rank = static_cast<int64_t>(commands.size());
    RankCommand command;
    command.argv = {trial_binary_, task_path};
    command.env = EnvironmentOf(request, place);
    command.env["RANK"] = std::to_string(rank);
    command.env["LOCAL_RANK"] = std::to_string(place.local_rank);
    command.log_path = dir / fmt::format("rank{}.log", rank);
    command.host = place.host;
    command.files = {task_path};
    command.shares_folder = request.full_run;  // Its checkpoints.
    command.continues_log = request.full_run;
    commands.push_back(std::move(command));
  }
  return commands;
}

Outcome BuiltinTarget::Classify(const LaunchRequest& request, const ExitReport& exit) {
  if (exit.first_failed_rank < 0) {
    if (exit.killed_by_us) return {TrialState::kStopped, ""};
    if (request.full_run) return {TrialState::kSucceeded, ""};
    return {TrialState::kFailed, "ended without a measurement"};
  }
  if (exit.exit_code == kExitInfeasible) {
    const std::string last = LastLine(exit.log_tail);
    return {TrialState::kInfeasible, last.empty() ? "the configuration cannot run here" : last};
  }
  if (const std::string why = KilledForHostMemory(exit); !why.empty())
    return {TrialState::kFailed, why};
  return {TrialState::kFailed, DescribeExit(exit)};
}

}  // namespace

std::unique_ptr<LaunchTarget> MakeBuiltinTarget(const ExperimentSpec& spec,
                                                const std::string& trial_binary) {
  return std::make_unique<BuiltinTarget>(spec, trial_binary);
}

}  // namespace dsat
