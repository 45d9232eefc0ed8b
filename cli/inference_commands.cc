// dsat eval and dsat generate: a checkpoint on one rank, whatever number of ranks has written it.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/num_cores.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "engine/config/ds_config.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/runtime/rank_variables.h"
#include "proto/trial_task.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// Micro-batch size and seed are the experiment's, the precision is that of the checkpoint in
// `folder`. Its optimizer state is left where it is: SGD has none.
Json InferenceConfig(const ExperimentSpec& spec, const std::string& folder) {
  const engine::BatchSizes batch =
      engine::ResolveBatchSizes(spec.ds_config, spec.ds_config_path, spec.slots_per_trial);
  Json config = {{"train_micro_batch_size_per_gpu", batch.micro_batch_size},
                 {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.0}}}}}};
  if (spec.ds_config.contains("seed")) config["seed"] = spec.ds_config["seed"];
  const engine::DType dtype = engine::ReadManifest(folder).dtype;
  if (dtype == engine::DType::kBF16) config["bf16"] = {{"enabled", true}};
  if (dtype == engine::DType::kF16) config["fp16"] = {{"enabled", true}};
  return config;
}

// Also gives this process the environment in which the task is to run.
TrialTask MakeTask(const CheckpointFlags& flags, TrialTask::Mode mode) {
  std::vector<std::string> warnings;
  const ExperimentSpec spec = ReadSpec(flags.config, flags.model_dir, &warnings);
  if (!IsBuiltin(spec)) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: /entrypoint is a command of your own; expected \"builtin\", whose checkpoints dsat "
          "can read",
          flags.config);
  }
  if (mode == TrialTask::Mode::kEvaluate) RequireValidation(spec);
  TrialTask task;
  task.mode = mode;
  task.model = spec.hyperparameters.value("model", Json::object());
  task.data = spec.hyperparameters.value("data", Json::object());
  task.base_dir = spec.model_dir;
  task.device = spec.device;
  task.seed = spec.options.random_seed;
  task.checkpoint_dir =
      fs::absolute(flags.checkpoint_dir.empty() ? TrainingFolder(flags.config) + "/checkpoint"
                                                : flags.checkpoint_dir);
  task.checkpoint_tag = engine::ResolveTag(task.checkpoint_dir, flags.tag);
  task.ds_config = InferenceConfig(spec, task.checkpoint_dir + "/" + task.checkpoint_tag);
  for (const auto& variables : {engine::ThreadVariables(NumCores()), spec.environment}) {
    for (const auto& [name, value] : variables)
      setenv(name.c_str(), value.c_str(), 1);
  }
  return task;
}

// Becomes dsat-trial, since this program has no kernels. Its task is in a file without a name,
// which it inherits.
[[noreturn]] void RunTask(const TrialTask& task) {
  const UniqueFd file(memfd_create("dsat-task", 0));
  if (!file) ThrowErrno("memfd_create", errno);
  const std::string path = fmt::format("/proc/self/fd/{}", file.get());
  std::ofstream out(path);
  if (!(out << ToJson(task)).flush()) ThrowErrno("memory for the task", errno);
  const std::string program = MakeRunnerOptions({}).trial_binary;
  execl(program.c_str(), program.c_str(), path.c_str(), nullptr);
  ThrowErrno(program, errno);
}

}  // namespace

int RunCommand(const Flags& flags, const EvalFlags& eval) {
  TrialTask task = MakeTask(eval.checkpoint, TrialTask::Mode::kEvaluate);
  task.json = flags.json;
  RunTask(task);
}

int RunCommand(const Flags& flags, const GenerateFlags& generate) {
  TrialTask task = MakeTask(generate.checkpoint, TrialTask::Mode::kGenerate);
  task.generate = generate.task;
  task.json = flags.json;
  task.seed = generate.seed;
  RunTask(task);
}

}  // namespace dsat::cli
