// dsat train, and dsat supervise, which is not shown in the help.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/file_writer.h"
#include "cli/commands.h"
#include "cli/full_run.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "cli/status_line.h"
#include "searcher/hosts/slots.h"
#include "searcher/input/preflight.h"
#include "searcher/processes/supervisor.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

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

// Ranks on other hosts write the trace to the folder that all hosts share.
TraceTask TraceOnHosts(TraceTask trace, const std::string& out_dir) {
  if (!trace.path.empty()) trace.path = out_dir + "/trace.json";
  return trace;
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

}  // namespace

int RunCommand(const Flags& flags, const TrainFlags& train) {
  RunnerOptions options = MakeRunnerOptions(train.run);
  std::vector<std::string> read;
  ExperimentSpec spec = ReadSpec(train.config, train.model_dir, &read);
  if (!train.ds_config.empty()) UseDsConfig(train.ds_config, spec);
  if (!IsBuiltin(spec)) RefuseOptionsOfBuiltin(train, spec);
  if (train.steps) spec.max_length_steps = *train.steps;
  PlanSlurm(spec, &options);
  LogNew(CheckSpec(spec, AreElsewhere(options.machines.hosts)), read);
  CheckHosts(spec, options.machines.hosts);
  if (train.training.eval_interval > 0 && IsBuiltin(spec))
    RequireValidation(spec, "--eval-interval: ");
  const std::string& out = train.run.out_dir;
  options.out_dir = fs::absolute(out.empty() ? TrainingFolder(train.config) : out).string();
  if (IsBuiltin(spec))
    CheckTarget("--out", options.out_dir + "/task.json", "a task", "\"attempt\":");
  options.training = train.training;
  const TraceTask trace = PrepareTrace(train.trace, spec);
  options.trace =
      AreElsewhere(options.machines.hosts) ? TraceOnHosts(trace, options.out_dir) : trace;
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

}  // namespace dsat::cli
