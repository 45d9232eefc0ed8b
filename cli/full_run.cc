// The full training run.
#include "cli/full_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/output/output.h"
#include "cli/status_line.h"
#include "profiler/planner.h"
#include "searcher/full_run.h"

namespace dsat::cli {
namespace {

int64_t StepsPerPrint(const Json& ds_config, int64_t steps) {
  const Json* given = FindAtPointer(ds_config, "/steps_per_print");
  if (given != nullptr && given->is_number_integer() && *given > 0) return given->get<int64_t>();
  return std::max<int64_t>(1, steps / 20);
}

// The FLOPs of a step on rank 0, forward and backward, as the engine predicts them if the searched
// metric counts them; else 0. Throws kInvalidArgument if the engine cannot run the config.
double RankFlops(const ExperimentSpec& spec, const Json& ds_config) {
  if (!IsBuiltin(spec)) return 0;
  PlannerInputs inputs = PlannerInputsOf(spec);
  inputs.ds_config_source = spec.ds_config_path;
  engine::Cluster cluster{.device = "cpu"};
  cluster.num_ranks = cluster.ranks_per_node = spec.slots_per_trial;
  try {
    const PlannerEstimate estimate = MakePlanner(inputs, cluster).Of(ds_config);
    const bool is_counted = spec.options.metric == "FLOPS_per_gpu";
    return is_counted ? 3 * static_cast<double>(estimate.ranks.at(0).forward_flops) : 0;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) return 0;  // The ranks say more.
    constexpr std::string_view kUnnamed = "ds_config: ";
    const std::string_view what = error.what();
    if (!what.starts_with(kUnnamed)) throw;
    Throw(error.code(), "{}: {}", spec.ds_config_path, what.substr(kUnnamed.size()));
  }
}

// Prints the first step of each interval, every skipped one with which steps begin to be skipped,
// and the last step; on a terminal, every step on a status line.
class StepPrinter {
 public:
  StepPrinter(StepsTo to, int64_t interval, int64_t num_steps, double rank_flops)
      : to_(to), interval_(interval), num_steps_(num_steps), rank_flops_(rank_flops) {}

  void OnProgress(const TrainingStep& step) {
    step.validated ? Print(ToJson(step), fmt::format("step {:>6}/{}  validation loss {:.4f}\n",
                                                     step.step, num_steps_, step.loss))
                   : OnStep(step);
  }

 private:
  void Print(const Json& json, const std::string& line) {
    status_.Clear();
    drawn_ = {};
    Say(to_ == StepsTo::kStderr ? stderr : stdout,
        to_ == StepsTo::kStdoutJson ? json.dump() + "\n" : line);
  }

  void Draw(const TrainingStep& step) {
    constexpr int64_t kBarColumns = 20;
    constexpr std::chrono::milliseconds kRedraw{100};
    const auto now = std::chrono::steady_clock::now();
    if (!status_.live() || now - drawn_ < kRedraw) return;
    drawn_ = now;
    const auto full = static_cast<size_t>(kBarColumns * step.step / num_steps_);
    const bool is_text = step.tokens_per_s > 0;
    status_.Draw(
        {fmt::format("[{:<{}}] {}/{}", std::string(full, '#'), kBarColumns, step.step, num_steps_),
         fmt::format("  loss {:.4f}", step.loss),
         "  " + DescribeMetric(is_text ? "tokens_per_second" : "throughput",
                               is_text ? step.tokens_per_s : step.samples_per_s),
         fmt::format("  {} left", DescribeDuration(Left(step))),
         fmt::format("  lr {:.3g}", step.lr)});
  }

  // The time that the steps after this one take, at the rate of this run.
  double Left(const TrainingStep& step) const {
    return SecondsLeft(started_, step.step - first_ + 1, num_steps_ - first_ + 1);
  }

  void OnStep(const TrainingStep& step) {
    if (step.step <= last_) first_ = printed_ = 0;  // The training was started again.
    last_ = step.step;
    if (first_ == 0) {
      first_ = step.step;
      started_ = std::chrono::steady_clock::now() -
                 std::chrono::microseconds(std::llround(1000 * step.latency_ms));
    }
    PrintIfDue(step);
    Draw(step);
  }

  void PrintIfDue(const TrainingStep& step) {
    const bool begins_to_skip = step.skipped && !std::exchange(skipped_, step.skipped);
    skipped_ = step.skipped;
    const bool due = printed_ == 0 || step.step / interval_ > printed_ / interval_;
    if (!due && !begins_to_skip && step.step != num_steps_) return;
    printed_ = step.step;
    Json json = ToJson(step);
    std::string line = fmt::format("step {:>6}/{}  loss {:.4f}  lr {:.3g}  {:.1f} ms", step.step,
                                   num_steps_, step.loss, step.lr, step.latency_ms);
    const auto add_rate = [&](const char* metric, double per_s) {
      if (per_s <= 0) return;
      json[metric] = per_s;
      line += "  " + DescribeMetric(metric, per_s);
    };
    add_rate("throughput", step.samples_per_s);
    add_rate("tokens_per_second", step.tokens_per_s);
    add_rate("FLOPS_per_gpu", rank_flops_ * 1000 / step.latency_ms);
    if (step.step < num_steps_) line += fmt::format("  {} left", DescribeDuration(Left(step)));
    if (step.skipped) {
      line += fmt::format("  skipped: gradients not finite at loss scale {}", step.loss_scale);
    }
    Print(json, line + "\n");
  }

  StepsTo to_;
  int64_t interval_;
  int64_t num_steps_;
  double rank_flops_;  // FLOPs of a rank in a step; 0 if they are not printed.
  int64_t first_ = 0;  // The first step since the training was started.
  std::chrono::steady_clock::time_point started_;  // When `first_` began.
  int64_t last_ = 0;
  std::chrono::steady_clock::time_point drawn_ = {};
  StatusLine status_;
  int64_t printed_ = 0;
  bool skipped_ = false;  // The last step was.
};

// Fills in what the history of a training says, of which this run may be the last part.
void ReadHistory(FullRun& run) {
  std::ifstream history(run.out_dir + "/metrics.jsonl");
  TrainingStep step;
  for (std::string line; std::getline(history, line);) {
    try {
      step = TrainingStepFromJson(Json::parse(line));
    } catch (const Json::exception&) {
      continue;  // The line is damaged, or of a later version.
    }
    run.num_skipped += step.skipped ? 1 : 0;
    if (step.validated) {
      run.validation_loss = step.loss;
    } else {
      run.last_step = step.step;
      run.loss = step.loss;
    }
  }
}

// Fills in what rank 0 of a command reports of a full run (python/dsat/_determined/core.py).
void ReadResult(FullRun& run) {
  const Json report = Json::parse(ReadOrEmpty(run.out_dir + "/hook-rank0.json"), nullptr,
                                  /*allow_exceptions=*/false);
  if (const Json* steps = FindAtPointer(report, "/result/steps")) run.last_step = *steps;
  if (const Json* value = FindAtPointer(report, "/result/value")) run.searcher_metric = *value;
  if (const Json* folder = FindAtPointer(report, "/result/checkpoint")) run.checkpoint = *folder;
}

// "val_loss is 0.25 after 100 batches; ", or "".
std::string DescribeResult(const ExperimentSpec& spec, const FullRun& run) {
  if (!run.searcher_metric) return "";
  const Json* metric = FindAtPointer(spec.file, "/searcher/metric");
  const std::string name = metric != nullptr && metric->is_string()
                               ? Printable(metric->get<std::string>())
                               : "the metric";
  const std::string steps = run.last_step ? fmt::format(" after {} batches", *run.last_step) : "";
  return fmt::format("{} is {:.6g}{}; ", name, *run.searcher_metric, steps);
}

// Prints to stderr where the result of a training is, unless it has failed.
void PrintEnd(const ExperimentSpec& spec, const FullRun& run, bool trained,
              const std::string& again) {
  const bool builtin = IsBuiltin(spec);
  if (run.outcome.state == TrialState::kStopped) {
    const std::string left = !run.checkpoint.empty() ? fmt::format("; {} continues from {}", again,
                                                                   Printable(run.checkpoint))
                             : builtin               ? ", there is no checkpoint"
                                                     : "";
    Say(stderr, fmt::format("interrupted{}; logs in {}\n", left, run.out_dir));
  } else if (run.outcome.state == TrialState::kSucceeded) {
    if (builtin && !trained)
      Say(stderr, "there is nothing left to train: the checkpoint has all steps\n");
    if (run.num_skipped > 0)
      Say(stderr, fmt::format("{} steps were skipped, because their gradients were not finite\n",
                              run.num_skipped));
    Say(stderr, fmt::format("done; {}{} is in {}\n", DescribeResult(spec, run),
                            builtin ? "the checkpoint" : "the output of this run",
                            builtin ? run.out_dir + "/checkpoint" : run.out_dir));
  }
}

// Says what will be done.
void PrintBegin(const ExperimentSpec& spec, const std::string& checkpoint) {
  const std::string length =
      IsBuiltin(spec) ? " for " + Counted(spec.max_length_steps, "step") : "";
  Say(stderr, fmt::format("training {}{} on {}\n", Printable(spec.name), length,
                          Counted(spec.slots_per_trial, "rank")));
  if (checkpoint.empty()) return;
  Say(stderr, fmt::format("continuing from {}; another --out starts from the beginning\n",
                          Printable(checkpoint)));
}

}  // namespace

FullRun RunFull(const ExperimentSpec& spec, const Json& ds_config, const RunnerOptions& options,
                StepsTo steps_to, const std::string& again) {
  const double rank_flops = RankFlops(spec, ds_config);  // Checks the config.
  MakeWritableFolder(options.out_dir);
  const bool builtin = IsBuiltin(spec);
  if (builtin) MakeWritableFolder(options.out_dir + "/checkpoint");  // Not only at the first save.
  std::atomic<int64_t> interrupts{0};
  const InterruptHandler interrupt(
      [&interrupts, builtin] {
        if (++interrupts == 1 && builtin)
          Say(stderr,
              "\nsaving a checkpoint before the end; a second interrupt ends without one\n");
      },
      OnHangup::kGoOn);
  PrintBegin(spec, builtin ? NewestCheckpoint(options.out_dir) : "");
  FullRun run;
  run.out_dir = options.out_dir;
  bool trained = false;
  {
    StepPrinter printer(steps_to, StepsPerPrint(ds_config, spec.max_length_steps),
                        spec.max_length_steps, rank_flops);
    run.outcome = RunFullTraining(
        spec, ds_config, options,
        [&](const TrainingStep& step) {
          printer.OnProgress(step);
          trained = trained || !step.validated;
        },
        [&interrupts] { return interrupts.load(); });
  }  // Clears the status line.
  // In the folder of a script, both would be of another training.
  if (builtin) {
    ReadHistory(run);
    run.checkpoint = NewestCheckpoint(options.out_dir);
  } else {
    ReadResult(run);
  }
  PrintEnd(spec, run, trained, again);
  return run;
}

Json ToJson(const FullRun& run) {
  return {{"state", ToString(run.outcome.state)},
          {"reason", run.outcome.reason},
          {"out_dir", run.out_dir},
          {"last_step", run.last_step ? Json(*run.last_step) : Json()},
          {"loss", run.loss ? Json(*run.loss) : Json()},
          {"skipped_steps", run.num_skipped},
          {"validation_loss", run.validation_loss ? Json(*run.validation_loss) : Json()},
          {"searcher_metric", run.searcher_metric ? Json(*run.searcher_metric) : Json()},
          {"checkpoint", run.checkpoint.empty() ? Json() : Json(run.checkpoint)}};
}

int ExitCodeOf(const FullRun& run) {
  if (run.outcome.state == TrialState::kSucceeded) return 0;
  if (run.outcome.state == TrialState::kStopped) return kExitInterrupted;
  const bool is_final = run.outcome.state == TrialState::kInfeasible;
  Throw(ErrorCode::kAborted, "training {}: {}; logs in {}", is_final ? "cannot continue" : "failed",
        run.outcome.reason, run.out_dir);
}

}  // namespace dsat::cli
