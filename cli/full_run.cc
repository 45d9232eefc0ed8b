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
#include "cli/progress.h"
#include "profiler/planner.h"
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

// What a step of the built-in engine does; 0 if unknown.
struct StepWork {
  double samples = 0;     // Over all ranks.
  double rank_flops = 0;  // Of rank 0, forward and backward, if the searched metric counts them.
};

StepWork WorkOf(const ExperimentSpec& spec, const Json& ds_config) {
  PlannerInputs inputs;
  inputs.model = spec.hyperparameters.value("model", Json::object());
  inputs.model_what = spec.config_path + ": /hyperparameters/model";
  inputs.base_dir = spec.model_dir;
  inputs.data = spec.hyperparameters.value("data", Json());
  inputs.ds_config_source = spec.ds_config_path;
  engine::Cluster cluster{.device = "cpu"};
  cluster.num_ranks = cluster.ranks_per_node = spec.slots_per_trial;
  try {
    const Estimate estimate = MakePlanner(inputs, cluster).Of(ds_config);
    const bool counts = spec.options.metric == "FLOPS_per_gpu";
    return {.samples = static_cast<double>(estimate.batch.train_batch_size),
            .rank_flops = counts ? 3 * static_cast<double>(estimate.ranks.at(0).forward_flops) : 0};
  } catch (const Error&) {
    return {};  // The ranks say why they cannot run it.
  }
}

// Prints the first reported step of each interval, and the last step. Not every fast step is
// reported.
class StepPrinter {
 public:
  StepPrinter(StepsTo to, int64_t interval, int64_t num_steps, const StepWork& work)
      : to_(to), interval_(interval), num_steps_(num_steps), work_(work) {}

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
    const int64_t step = progress.step;
    const double latency_ms = progress.latency_ms;
    const bool due = printed_ == 0 || step / interval_ > printed_ / interval_;
    if (!due && step != num_steps_) return;
    printed_ = step;
    std::FILE* const out = to_ == StepsTo::kStderr ? stderr : stdout;
    Json json = {{"step", step}, {"loss", progress.loss}, {"latency_ms", latency_ms}};
    std::string line = fmt::format("step {:>6}/{}  loss {:.4f}  {:.1f} ms", step, num_steps_,
                                   progress.loss, latency_ms);
    const auto add_rate = [&](const char* metric, double work) {
      if (work <= 0 || latency_ms <= 0) return;
      const double per_s = 1000 * work / latency_ms;
      json[metric] = per_s;
      line += "  " + DescribeMetric(metric, per_s);
    };
    add_rate("throughput", work_.samples);
    add_rate("FLOPS_per_gpu", work_.rank_flops);
    fmt::print(out, "{}\n", to_ == StepsTo::kStdoutJson ? json.dump() : line);
    std::fflush(out);
  }

  StepsTo to_;
  int64_t interval_;
  int64_t num_steps_;
  StepWork work_;
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
                      spec.max_length_steps, builtin ? WorkOf(spec, ds_config) : StepWork{});
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
