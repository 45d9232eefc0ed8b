// The full training run.
#include "cli/full_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "searcher/full_run.h"

namespace dsat::cli {
namespace {

// The newest checkpoint of a training in `out_dir`, "" if there is none
// (engine/runtime/checkpoint/checkpoint.h).
std::string NewestCheckpoint(const std::string& out_dir) {
  const std::string dir = out_dir + "/checkpoint";
  if (!std::filesystem::exists(dir + "/latest")) return "";
  const std::string tag = ReadFile(dir + "/latest");
  return dir + "/" + tag.substr(0, tag.find('\n'));
}

int64_t StepsPerPrint(const Json& ds_config, int64_t steps) {
  const Json* given = FindAtPointer(ds_config, "/steps_per_print");
  if (given != nullptr && given->is_number_integer() && *given > 0) return given->get<int64_t>();
  return std::max<int64_t>(1, steps / 20);
}

// Prints the first reported step of each interval, and the last step. Not every fast step is
// reported.
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

// Prints to stderr where the result of a training is, unless it has failed.
void PrintEnd(const FullRun& run, bool builtin) {
  if (run.outcome.state == TrialState::kStopped) {
    const std::string left =
        !builtin ? ""
        : run.checkpoint.empty()
            ? ", there is no checkpoint"
            : fmt::format("; the same command continues from {}", Printable(run.checkpoint));
    fmt::print(stderr, "interrupted{}; logs in {}\n", left, run.out_dir);
  } else if (run.outcome.state == TrialState::kSucceeded) {
    if (builtin && !run.last_step)
      fmt::print(stderr, "there is nothing left to train: the checkpoint has all steps\n");
    fmt::print(stderr, "done; {} is in {}\n", builtin ? "the checkpoint" : "the output of this run",
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
      fmt::print(stderr,
                 "\nsaving a checkpoint before the end; a second interrupt ends without one\n");
  });
  fmt::print(stderr, "training {} for {} steps on {} rank{}\n", Printable(spec.name),
             spec.max_length_steps, spec.slots_per_trial, spec.slots_per_trial == 1 ? "" : "s");
  const std::string before = builtin ? NewestCheckpoint(options.out_dir) : "";
  if (!before.empty())
    fmt::print(stderr, "continuing from {}; another --out starts from the beginning\n",
               Printable(before));
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

}  // namespace dsat::cli
