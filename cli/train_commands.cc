// dsat train, and the commands on its checkpoints: eval and generate on one rank, whatever number
// of ranks has written them, and collate. dsat supervise is not shown in the help.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file_writer.h"
#include "base/files.h"
#include "base/json.h"
#include "base/num_cores.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/full_run.h"
#include "cli/interrupt.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "cli/status_line.h"
#include "engine/config/ds_config.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/files/collate.h"
#include "engine/runtime/rank_variables.h"
#include "proto/trial_task.h"
#include "searcher/hosts/slots.h"
#include "searcher/input/preflight.h"
#include "searcher/processes/supervisor.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// The default folder of the trainings of an experiment file, which no other file has.
std::string TrainingFolder(const std::string& config) {
  const auto file = fs::absolute(config).lexically_normal();
  std::string name = file.lexically_relative(fs::current_path()).replace_extension().string();
  std::ranges::replace(name, '/', '-');
  return "dsat-out/train/" + name;
}

// Throws kInvalidArgument if the data of a built-in training has no part for validation.
// `wanted_by` begins the message: "", or an option as in "--option: ".
void RequireValidation(const ExperimentSpec& spec, const std::string& wanted_by = "") {
  const Json* const data = FindAtPointer(spec.hyperparameters, "/data");
  if (data != nullptr && data->contains("validation")) return;
  Throw(ErrorCode::kInvalidArgument,
        "{}{}: /hyperparameters/data has no \"validation\"; expected for example "
        "{{\"split\": 0.05}} or {{\"path\": \"validation.txt\"}} (docs/models.md)",
        wanted_by, spec.config_path);
}

// The trace with an absolute path. Removes an older trace at that path, so that it cannot be taken
// for this run's. Throws if no trace can be written.
TraceTask PrepareTrace(TraceTask trace, const ExperimentSpec& spec) {
  if (trace.path.empty()) return trace;
  if (!IsBuiltin(spec)) {
    Throw(ErrorCode::kInvalidArgument,
          "--trace: {}: /entrypoint is a command; expected builtin, because dsat cannot trace a "
          "script",
          spec.config_path);
  }
  trace.path = fs::absolute(trace.path).string();
  CheckTarget("--trace", trace.path, "a trace", "\"traceEvents\":");
  const FileWriter probe(trace.path);
  fs::remove(trace.path);
  return trace;
}

// A script decides itself how long it trains, and when it validates and saves.
void RefuseOptionsOfBuiltin(const TrainFlags& train, const ExperimentSpec& spec) {
  const TrainingOptions& given = train.training;
  const TrainingOptions defaults;
  const char* const flag = train.steps ? "--steps"
                           : given.checkpoint_interval != defaults.checkpoint_interval
                               ? "--checkpoint-interval"
                           : given.keep != defaults.keep ? "--keep"
                           : given.eval_interval > 0     ? "--eval-interval"
                                                         : nullptr;
  if (flag == nullptr) return;
  Throw(ErrorCode::kInvalidArgument,
        "{}: {}: /entrypoint is a command, which decides itself how long it trains and when it "
        "validates and saves; leave the option out",
        flag, spec.config_path);
}

void FetchTrace(const std::string& written, const std::string& wanted) {
  if (written == wanted || !fs::exists(written)) return;
  fs::copy_file(written, wanted, fs::copy_options::overwrite_existing);
  fs::remove(written);
}

void PrintTrace(const TraceTask& trace) {
  if (trace.path.empty()) return;
  if (fs::exists(trace.path)) {
    Say(stderr, fmt::format("the trace is in {}; open it in ui.perfetto.dev or chrome://tracing\n",
                            trace.path));
  } else {
    Say(stderr,
        "no trace: the run ended before the steps to trace, or the file could not be written (the "
        "log of rank 0 says why)\n");
  }
}

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
  const ExperimentSpec spec = ReadSpec(flags.config, flags.model_dir);
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

Json ToJson(const engine::CollateResult& result, const CollateFlags& flags) {
  return {{"out", flags.out},
          {"tag", result.tag},
          {"format", "safetensors"},
          {"dtype", flags.dtype},
          {"tensors", result.num_tensors},
          {"elements", result.num_elems},
          {"bytes", result.file_bytes}};
}

}  // namespace

int RunCommand(const Flags& flags, const TrainFlags& train) {
  RunnerOptions options = MakeRunnerOptions(train.run);
  ExperimentSpec spec = ReadSpec(train.config, train.model_dir);
  if (!train.ds_config.empty()) UseDsConfig(train.ds_config, spec);
  if (!IsBuiltin(spec)) RefuseOptionsOfBuiltin(train, spec);
  if (train.steps) spec.max_length_steps = *train.steps;
  PlanSlurm(spec, &options);
  Warn(CheckSpec(spec, AreElsewhere(options.machines.hosts)));
  CheckHosts(spec, options.machines.hosts);
  if (train.training.eval_interval > 0 && IsBuiltin(spec))
    RequireValidation(spec, "--eval-interval: ");
  const std::string& out = train.run.out_dir;
  options.out_dir = fs::absolute(out.empty() ? TrainingFolder(train.config) : out).string();
  if (IsBuiltin(spec))
    CheckTarget("--out", options.out_dir + "/task.json", "a task", "\"attempt\":");
  options.training = train.training;
  const TraceTask trace = PrepareTrace(train.trace, spec);
  options.trace = trace;
  // Ranks on other hosts write the trace to the folder that all hosts share.
  if (!trace.path.empty() && AreElsewhere(options.machines.hosts))
    options.trace.path = options.out_dir + "/trace.json";
  const FullRun run =
      RunFull(spec, spec.ds_config, options, flags.json ? StepsTo::kStdoutJson : StepsTo::kStdout,
              "the same command");
  FetchTrace(options.trace.path, trace.path);
  PrintTrace(trace);
  if (flags.json) Say(stdout, ToJson(run).dump() + "\n");
  return ExitCodeOf(run);
}

int RunCommand(const Flags&, const SuperviseFlags&) {
  SuperviseMain();
}

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

int RunCommand(const Flags& flags, const CollateFlags& collate) {
  std::atomic<bool> interrupted = false;
  const InterruptHandler on_interrupt([&] { interrupted = true; });
  engine::CollateResult result;
  try {
    StatusLine line;
    result = engine::Collate(
        {.dir = collate.checkpoint_dir,
         .tag = collate.tag,
         .out = collate.out,
         .dtype = collate.dtype,
         .force = collate.force},
        [&](int64_t done_bytes, int64_t all_bytes) {
          if (interrupted) Throw(ErrorCode::kCancelled, "interrupted");
          line.Draw({fmt::format("collate: {:.0f} % of {}",
                                 100.0 * static_cast<double>(done_bytes) /
                                     static_cast<double>(std::max<int64_t>(all_bytes, 1)),
                                 HumanBytes(all_bytes))});
        });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
    Say(stderr, fmt::format("interrupted; {} was not written\n", Printable(collate.out)));
    return kExitInterrupted;
  }
  if (flags.json) {
    fmt::print("{}\n", ToJson(result, collate).dump(2));
  } else {
    fmt::print("{}: {} tensors, {} elements, {}, {}, of checkpoint {}\n", collate.out,
               result.num_tensors, result.num_elems, collate.dtype, HumanBytes(result.file_bytes),
               result.tag);
  }
  return 0;
}

}  // namespace dsat::cli
