// dsat eval and dsat generate: a checkpoint on one rank, whatever number of ranks has written it.
#include "cli/inference_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/unique_fd.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "engine/config/ds_config.h"
#include "engine/runtime/rank_variables.h"
#include "proto/trial_task.h"
#include "searcher/processes/supervised_process.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// Precision, micro-batch size and seed are the experiment's. A checkpoint's optimizer state is left
// where it is: SGD has none.
Json InferenceConfig(const ExperimentSpec& spec) {
  const engine::BatchSizes batch =
      engine::ResolveBatchSizes(spec.ds_config, spec.ds_config_path, spec.slots_per_trial);
  Json config = {{"train_micro_batch_size_per_gpu", batch.micro_batch_size},
                 {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.0}}}}}};
  for (const char* key : {"bf16", "bfloat16", "fp16", "seed"}) {
    if (spec.ds_config.contains(key)) config[key] = spec.ds_config[key];
  }
  return config;
}

TrialTask MakeTask(const CheckpointFlags& flags, TrialTask::Mode mode) {
  std::vector<std::string> warnings;
  const ExperimentSpec spec = ReadSpec(flags.config, flags.model_dir, &warnings);
  if (!IsBuiltin(spec)) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: /entrypoint is a command of your own; expected \"builtin\", whose checkpoints dsat "
          "can read",
          flags.config);
  }
  TrialTask task;
  task.mode = mode;
  task.ds_config = InferenceConfig(spec);
  task.model = spec.hyperparameters.value("model", Json::object());
  task.data = spec.hyperparameters.value("data", Json::object());
  task.base_dir = spec.model_dir;
  task.device = spec.device;
  task.seed = spec.options.random_seed;
  task.checkpoint_dir = fs::absolute(flags.checkpoint_dir.empty() ? "dsat-out/train/checkpoint"
                                                                  : flags.checkpoint_dir);
  task.checkpoint_tag = flags.tag;
  return task;
}

// A file that is gone with this object.
class TaskFile {
 public:
  explicit TaskFile(const TrialTask& task)
      : folder_(MakeTemporaryFolder()), path_(folder_ + "/task.json") {
    WriteJsonFile(path_, ToJson(task));
  }
  ~TaskFile() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  TaskFile(const TaskFile&) = delete;
  TaskFile& operator=(const TaskFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string folder_;
  std::string path_;
};

std::string ReadAll(int fd) {
  std::string text;
  char block[4096];
  for (ssize_t count = 0; (count = read(fd, block, sizeof(block))) != 0;) {
    if (count < 0 && errno != EINTR) ThrowErrno("read", errno);
    if (count > 0) text.append(block, static_cast<size_t>(count));
  }
  return text;
}

// Runs the task in a process of its own (this one has no kernels), on all cores; a Ctrl-C reaches
// both. Gives what it has printed if `capture`; nothing if it failed, after it has said why. Throws
// kAborted if a signal has ended it.
std::optional<std::string> RunTask(const TrialTask& task, bool capture) {
  const TaskFile file(task);
  const std::string program = MakeRunnerOptions({}).trial_binary;
  setenv(engine::kEnvNumThreads, std::to_string(std::thread::hardware_concurrency()).c_str(), 1);
  int ends[2] = {-1, -1};
  if (capture && pipe2(ends, O_CLOEXEC) != 0) ThrowErrno("pipe", errno);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (capture) posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  char* argv[] = {const_cast<char*>(program.c_str()), const_cast<char*>(file.path().c_str()),
                  nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) ThrowErrno(program, error);
  in.Reset();
  const std::string printed = capture ? ReadAll(out.get()) : "";
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) ThrowErrno("waitpid", errno);
  }
  if (WIFSIGNALED(status)) {
    Throw(ErrorCode::kAborted, "{} was ended by signal {}", ToString(task.mode), WTERMSIG(status));
  }
  return WEXITSTATUS(status) == kExitOk ? std::optional(printed) : std::nullopt;
}

}  // namespace

int RunCommand(const Flags& flags, const EvalFlags& eval) {
  const std::optional<std::string> printed =
      RunTask(MakeTask(eval.checkpoint, TrialTask::Mode::kEvaluate), true);
  if (!printed) return kExitError;
  const Json result = Json::parse(*printed);
  if (flags.json) {
    fmt::print("{}\n", result.dump());
  } else {
    fmt::print("loss {:.4f}, perplexity {:.4g}, over {} samples, after step {}\n",
               result.at("loss").get<double>(), result.at("perplexity").get<double>(),
               result.at("samples").get<int64_t>(), result.at("step").get<int64_t>());
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
