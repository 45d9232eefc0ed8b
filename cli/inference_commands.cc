// dsat eval and dsat generate: a checkpoint on one rank, whatever number of ranks has written it.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/num_cores.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "engine/config/ds_config.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/runtime/rank_variables.h"
#include "proto/trial_task.h"
#include "searcher/processes/supervised_process.h"

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
  task.checkpoint_dir = fs::absolute(flags.checkpoint_dir.empty() ? "dsat-out/train/checkpoint"
                                                                  : flags.checkpoint_dir);
  task.checkpoint_tag = engine::ResolveTag(task.checkpoint_dir, flags.tag);
  task.ds_config = InferenceConfig(spec, task.checkpoint_dir + "/" + task.checkpoint_tag);
  for (const auto& variables : {engine::ThreadVariables(NumCores()), spec.environment}) {
    for (const auto& [name, value] : variables)
      setenv(name.c_str(), value.c_str(), 1);
  }
  return task;
}

std::string PathOf(const UniqueFd& fd) {
  return fmt::format("/proc/self/fd/{}", fd.get());
}

// A file without a name, which our child inherits.
UniqueFd TaskFile(const TrialTask& task) {
  UniqueFd file(memfd_create("dsat-task", 0));
  if (!file) ThrowErrno("memfd_create", errno);
  std::ofstream out(PathOf(file));
  if (!(out << ToJson(task)).flush()) ThrowErrno("memory for the task", errno);
  return file;
}

// Becomes dsat-trial, which ends with `parent`, however that ends.
[[noreturn]] void BecomeTrial(const std::string& program, const std::string& task, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitError);  // It ended before prctl.
  execl(program.c_str(), program.c_str(), task.c_str(), nullptr);
  fmt::print(stderr, "dsat: {}: {}\n", program, std::strerror(errno));
  _exit(kExitError);
}

std::string ReadAll(int fd) {
  std::string text;
  char block[4096];
  for (ssize_t count = 0; (count = read(fd, block, sizeof(block))) != 0;) {
    if (count < 0 && errno != EINTR) ThrowErrno("read", errno);
    if (count > 0) text.append(block, static_cast<size_t>(count));
  }
  return text;
}

// Runs the task in a process of its own, since this one has no kernels; a Ctrl-C reaches both.
// Gives what it has printed if `capture`; nothing if it failed, after it has said why. Throws
// kAborted if a signal has ended it.
std::optional<std::string> RunTask(const TrialTask& task, bool capture) {
  const UniqueFd file = TaskFile(task);
  const std::string program = MakeRunnerOptions({}).trial_binary;
  int ends[2] = {-1, -1};
  if (capture && pipe2(ends, O_CLOEXEC) != 0) ThrowErrno("pipe", errno);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) ThrowErrno("fork", errno);
  if (pid == 0) {
    if (capture) dup2(in.get(), STDOUT_FILENO);
    BecomeTrial(program, PathOf(file), parent);
  }
  in.Reset();
  const std::string printed = capture ? ReadAll(out.get()) : "";
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) ThrowErrno("waitpid", errno);
  }
  // Whoever reads the output, such as head, has enough of it.
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) return std::nullopt;
  if (WIFSIGNALED(status)) {
    Throw(ErrorCode::kAborted, "{} was ended by signal {}", ToString(task.mode), WTERMSIG(status));
  }
  return WEXITSTATUS(status) == kExitOk ? std::optional(printed) : std::nullopt;
}

}  // namespace

int RunCommand(const Flags& flags, const EvalFlags& eval) {
  const TrialTask task = MakeTask(eval.checkpoint, TrialTask::Mode::kEvaluate);
  const std::optional<std::string> printed = RunTask(task, true);
  if (!printed) return kExitError;
  const Json result = Json::parse(*printed);
  if (flags.json) {
    fmt::print("{}\n", result.dump());
  } else {
    // JSON has no infinity, which an overflow of the perplexity is.
    const auto number = [&](const char* key, double without) {
      return result.at(key).is_null() ? without : result.at(key).get<double>();
    };
    fmt::print("loss {:.4f}, perplexity {:.4g}, over {} samples, after step {}\n",
               number("loss", NAN),
               number("perplexity", result.at("loss").is_null() ? NAN : INFINITY),
               result.at("samples").get<int64_t>(), result.at("step").get<int64_t>());
  }
  if (result.at("loss").is_null()) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}/{}: the loss is not finite, because the parameters of the checkpoint are not",
          task.checkpoint_dir, task.checkpoint_tag);
  }
  return 0;
}

int RunCommand(const Flags& flags, const GenerateFlags& generate) {
  TrialTask task = MakeTask(generate.checkpoint, TrialTask::Mode::kGenerate);
  task.generate = generate.task;
  task.generate.json = flags.json;
  task.seed = generate.seed;
  return RunTask(task, false) ? 0 : kExitError;
}

}  // namespace dsat::cli
