// dsat train, and the hidden dsat supervise.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/file_writer.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/full_run.h"
#include "cli/interrupt.h"
#include "engine/config/strategies.h"
#include "searcher/hosts/placement.h"
#include "searcher/input/preflight.h"
#include "searcher/launch/launcher.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// The newest checkpoint of a training in `out_dir`, "" if there is none
// (engine/runtime/checkpoint/checkpoint.h).
std::string NewestCheckpoint(const std::string& out_dir) {
  const std::string dir = out_dir + "/checkpoint";
  if (!fs::exists(dir + "/latest")) return "";
  const std::string tag = ReadFile(dir + "/latest");
  return dir + "/" + tag.substr(0, tag.find('\n'));
}

int64_t StepsPerPrint(const Json& ds_config, int64_t steps) {
  const Json* given = FindAtPointer(ds_config, "/steps_per_print");
  if (given != nullptr && given->is_number_integer() && *given > 0) return given->get<int64_t>();
  return std::max<int64_t>(1, steps / 20);
}

// Fast steps are heard of now and then only: the first one in each interval is printed, and the
// last.
class StepPrinter {
 public:
  StepPrinter(StepsTo to, int64_t interval, int64_t num_steps)
      : to_(to), interval_(interval), num_steps_(num_steps) {}

  void OnProgress(const TrainingProgress& progress) {
    progress.validated ? OnValidation(progress) : OnStep(progress);
  }

 private:
  void OnValidation(const TrainingProgress& progress) {
    std::FILE* const out = to_ == StepsTo::kStderr ? stderr : stdout;
    if (to_ == StepsTo::kStdoutJson) {
      fmt::print(out, "{}\n",
                 Json{{"step", progress.step}, {"validation_loss", progress.loss}}.dump());
    } else {
      fmt::print(out, "step {:>6}/{}  validation loss {:.4f}\n", progress.step, num_steps_,
                 progress.loss);
    }
    std::fflush(out);
  }

  void OnStep(const TrainingProgress& progress) {
    const auto [step, loss, latency_ms, validated] = progress;
    const bool due = printed_ == 0 || step / interval_ > printed_ / interval_;
    if (!due && step != num_steps_) return;
    printed_ = step;
    std::FILE* const out = to_ == StepsTo::kStderr ? stderr : stdout;
    if (to_ == StepsTo::kStdoutJson) {
      fmt::print(out, "{}\n",
                 Json{{"step", step}, {"loss", loss}, {"latency_ms", latency_ms}}.dump());
    } else {
      fmt::print(out, "step {:>6}/{}  loss {:.4f}  {:.1f} ms\n", step, num_steps_, loss,
                 latency_ms);
    }
    std::fflush(out);
  }

  StepsTo to_;
  int64_t interval_;
  int64_t num_steps_;
  int64_t printed_ = 0;
};

// Where the trace goes, absolute; removes an older one, so that what is there afterwards is of this
// run. Throws if there will be none.
TraceTask PrepareTrace(TraceTask trace, const ExperimentSpec& spec) {
  if (trace.path.empty()) return trace;
  if (!IsBuiltin(spec)) {
    Throw(
        ErrorCode::kInvalidArgument,
        "--trace: {}: /entrypoint is a command; expected builtin: dsat does not see what your own "
        "script does",
        spec.config_path);
  }
  trace.path = fs::absolute(trace.path).string();
  if (fs::exists(trace.path) && !fs::is_regular_file(trace.path))
    Throw(ErrorCode::kInvalidArgument, "--trace {}: expected a file", trace.path);
  const FileWriter probe(trace.path);
  fs::remove(trace.path);
  return trace;
}

// A rank on another host writes to the folder that all hosts share.
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
    fmt::print(stderr, "the trace is in {}; ui.perfetto.dev or chrome://tracing shows it\n",
               trace.path);
  } else {
    fmt::print(stderr, "no trace: the run ended before it had made the steps\n");
  }
}

// Says on stderr what a training that was not a failure has left.
void PrintEnd(const FullRun& run, bool builtin) {
  if (run.outcome.state == TrialState::kStopped) {
    const std::string left =
        !builtin ? ""
        : run.checkpoint.empty()
            ? ", there is no checkpoint"
            : fmt::format("; the same command goes on from {}", Printable(run.checkpoint));
    fmt::print(stderr, "interrupted{}; logs in {}\n", left, run.out_dir);
  } else if (run.outcome.state == TrialState::kSucceeded) {
    if (builtin && !run.last_step)
      fmt::print(stderr, "nothing left to train: the checkpoint has all steps\n");
    fmt::print(stderr, "done; {} is in {}\n", builtin ? "the checkpoint" : "everything of this run",
               builtin ? run.out_dir + "/checkpoint" : run.out_dir);
  }
}

}  // namespace

FullRun RunFull(const ExperimentSpec& spec, const Json& ds_config, const RunnerOptions& options,
                StepsTo steps_to) {
  MakeWritableFolder(options.out_dir);
  const bool builtin = IsBuiltin(spec);
  std::atomic<int64_t> interrupts{0};
  const InterruptHandler interrupt([&interrupts, builtin] {
    if (++interrupts == 1 && builtin)
      fmt::print(stderr, "\nending with a checkpoint; a second interrupt ends without one\n");
  });
  fmt::print(stderr, "training {} for {} steps on {} rank{}\n", Printable(spec.name),
             spec.max_length_steps, spec.slots_per_trial, spec.slots_per_trial == 1 ? "" : "s");
  const std::string before = builtin ? NewestCheckpoint(options.out_dir) : "";
  if (!before.empty())
    fmt::print(stderr, "going on from {}; another --out starts anew\n", Printable(before));
  FullRun run{.out_dir = options.out_dir,
              .outcome = {},
              .last_step = {},
              .validation_loss = {},
              .checkpoint = {}};
  StepPrinter printer(steps_to, StepsPerPrint(ds_config, spec.max_length_steps),
                      spec.max_length_steps);
  run.outcome = RunFullTraining(
      spec, ds_config, options,
      [&](const TrainingProgress& progress) {
        if (progress.step <= 0) return;
        printer.OnProgress(progress);
        if (progress.validated) {
          run.validation_loss = progress.loss;
        } else {
          run.last_step = progress.step;
          run.loss = progress.loss;
        }
      },
      [&interrupts] { return interrupts.load(); });
  if (builtin) run.checkpoint = NewestCheckpoint(options.out_dir);
  PrintEnd(run, builtin);
  return run;
}

Json ToJson(const FullRun& run) {
  return {{"state", ToString(run.outcome.state)},
          {"reason", run.outcome.reason},
          {"out_dir", run.out_dir},
          {"last_step", run.last_step ? Json(*run.last_step) : Json()},
          {"loss", run.last_step ? Json(run.loss) : Json()},
          {"validation_loss", run.validation_loss ? Json(*run.validation_loss) : Json()},
          {"checkpoint", run.checkpoint.empty() ? Json() : Json(run.checkpoint)}};
}

int ExitCodeOf(const FullRun& run) {
  if (run.outcome.state == TrialState::kSucceeded) return 0;
  if (run.outcome.state == TrialState::kStopped) return kExitInterrupted;
  Throw(ErrorCode::kAborted, "training {}: {}; logs in {}", ToString(run.outcome.state),
        run.outcome.reason, run.out_dir);
}

int RunCommand(const Flags& flags, const TrainFlags& train) {
  RunnerOptions options = MakeRunnerOptions(train.run);
  std::vector<std::string> read;
  ExperimentSpec spec = ReadSpec(train.config, train.model_dir, &read);
  if (!train.ds_config.empty()) {
    spec.ds_config = engine::ReadDsConfig(train.ds_config);
    spec.ds_config_path = train.ds_config;
  }
  if (train.steps) spec.max_length_steps = *train.steps;
  LogNew(CheckSpec(spec, AreElsewhere(options.machines.hosts)), read);
  const std::string out = train.run.out_dir.empty() ? "dsat-out/train" : train.run.out_dir;
  options.out_dir = fs::absolute(out).string();
  options.checkpoint_interval = train.checkpoint_interval;
  options.eval_interval = train.eval_interval;
  const TraceTask trace = PrepareTrace(train.trace, spec);
  options.trace =
      AreElsewhere(options.machines.hosts) ? TraceOnHosts(trace, options.out_dir) : trace;
  const FullRun run =
      RunFull(spec, spec.ds_config, options, flags.json ? StepsTo::kStdoutJson : StepsTo::kStdout);
  FetchTrace(options.trace.path, trace.path);
  PrintTrace(trace);
  return ExitCodeOf(run);
}

int RunCommand(const Flags&, const SuperviseFlags&) {
  return SuperviseMain();
}

}  // namespace dsat::cli
