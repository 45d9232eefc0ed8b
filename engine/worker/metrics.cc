// From the steps of a run to what a trial reports.
#include "engine/worker/metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/log.h"
#include "proto/trial.h"

namespace dsat::engine {
namespace {

Metric SummarizeSteps(std::span<const StepResult> steps,
                      const std::function<double(const StepResult&)>& value_of) {
  std::vector<double> values;
  for (const StepResult& step : steps)
    values.push_back(value_of(step));
  return Summarize(std::move(values));
}

Metric Scaled(Metric metric, double factor) {
  metric.value *= factor;
  metric.spread *= factor;
  return metric;
}

// FLOPS_per_gpu, samples and tokens per second.
void AddRates(std::span<const StepResult> steps, const StepWork& scale, Measurement& measurement) {
  constexpr double kMsPerSecond = 1000;
  // A backward pass costs twice its forward pass; recomputation would not count (DeepSpeed).
  constexpr double kPassesPerStep = 3;
  const auto batch = static_cast<double>(scale.train_batch_size);
  const Metric flops = SummarizeSteps(steps, [](const StepResult& step) {
    return kPassesPerStep * static_cast<double>(step.forward_flops) * kMsPerSecond /
           step.latency_ms;
  });
  const Metric throughput = SummarizeSteps(
      steps, [batch](const StepResult& step) { return batch * kMsPerSecond / step.latency_ms; });
  measurement["FLOPS_per_gpu"] = flops;
  measurement["throughput"] = throughput;
  if (scale.tokens_per_sample > 0) {
    measurement["tokens_per_second"] =
        Scaled(throughput, static_cast<double>(scale.tokens_per_sample));
  }
  if (scale.peak_flops > 0) measurement["MFU"] = Scaled(flops, 1 / scale.peak_flops);
}

}  // namespace

int64_t TwoUnitsNumParams(const Model& model) {
  std::array<int64_t, 3> largest{};  // The third place is for the next one.
  for (const auto& layer : model.layers) {
    largest[2] = NumParams(*layer);
    std::ranges::sort(largest, std::greater<>());
  }
  return largest[0] + largest[1];
}

int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};  // In KiB on Linux.
}

Measurement MeasurementOf(std::span<const StepResult> steps, const StepWork& scale,
                          int64_t peak_bytes) {
  Measurement measurement;
  AddRates(steps, scale, measurement);
  measurement["latency"] = SummarizeSteps(steps, std::mem_fn(&StepResult::latency_ms));
  measurement["forward"] = SummarizeSteps(steps, std::mem_fn(&StepResult::forward_ms));
  measurement["backward"] = SummarizeSteps(steps, std::mem_fn(&StepResult::backward_ms));
  measurement["step"] = SummarizeSteps(steps, std::mem_fn(&StepResult::step_ms));
  const bool pipeline =
      std::ranges::any_of(steps, [](const StepResult& s) { return s.idle_ms > 0; });
  if (pipeline) {
    measurement["pipeline_idle"] = SummarizeSteps(
        steps, [](const StepResult& step) { return step.idle_ms / step.latency_ms; });
  }
  measurement["peak_bytes"] = {.value = static_cast<double>(peak_bytes), .spread = 0, .samples = 1};
  measurement["loss"] = {.value = steps.back().loss, .spread = 0, .samples = 1};
  return measurement;
}

std::vector<double> TimingOf(int64_t micro_batch_size, std::span<const StepResult> steps) {
  const Metric passes_ms = SummarizeSteps(
      steps, [](const StepResult& step) { return step.forward_ms + step.backward_ms; });
  const Metric update_ms = SummarizeSteps(steps, std::mem_fn(&StepResult::step_ms));
  return {static_cast<double>(micro_batch_size), passes_ms.value, update_ms.value};
}

TrainingStep RecordOf(const StepResult& step, int64_t num_steps, const StepWork& scale,
                      int64_t peak_bytes) {
  const double samples_per_s = 1000 * static_cast<double>(scale.train_batch_size) / step.latency_ms;
  return {.step = num_steps,
          .loss = step.loss,
          .lr = step.lr,
          .grad_norm = step.grad_norm,
          .loss_scale = step.loss_scale,
          .skipped = step.skipped,
          .samples_per_s = samples_per_s,
          .tokens_per_s = samples_per_s * static_cast<double>(scale.tokens_per_sample),
          .latency_ms = step.latency_ms,
          .peak_bytes = peak_bytes};
}

void LogStep(const TrainingStep& step, int64_t num_skipped) {
  Log(LogLevel::kInfo, "step",
      {{"step", step.step},
       {"loss", fmt::format("{:.4f}", step.loss)},
       {"lr", fmt::format("{:.3g}", step.lr)},
       {"grad_norm", fmt::format("{:.3g}", step.grad_norm)},
       {"samples_per_s", fmt::format("{:.1f}", step.samples_per_s)},
       {"skipped_steps", num_skipped}});
}

}  // namespace dsat::engine
