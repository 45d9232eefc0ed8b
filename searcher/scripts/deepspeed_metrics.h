// What DeepSpeed's autotuning hooks write, in dsat's units, whichever version wrote it.
//
// The file's times are means over the micro-steps of one optimizer step, and their unit, names and
// scale differ between versions. With the hooks on, DeepSpeed also prints a line per optimizer
// step; the times at which these arrive give the true time of a step, data loading included.
#ifndef DSAT_SEARCHER_SCRIPTS_DEEPSPEED_METRICS_H_
#define DSAT_SEARCHER_SCRIPTS_DEEPSPEED_METRICS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "proto/trial.h"

namespace dsat {

// The text by which DeepSpeed's line per step is known: "[Rank 0] time (ms) | fwd: 0.16 | ...".
inline constexpr char kStepLineMarker[] = "time (ms) |";

// One optimizer step as DeepSpeed printed it: ms over all its micro-batches.
struct StepLine {
  double forward_ms = 0;
  double backward_ms = 0;
  double step_ms = 0;
  int64_t time_ns = 0;  // When it arrived.
};
// nullopt for any other line, also for DeepSpeed's breakdown of micro-steps.
std::optional<StepLine> ParseStepLine(std::string_view line);

// The step lines of a log that are whole and no longer than kMaxStampedLineBytes.
int64_t CountStepLines(std::string_view log);

// A metrics file in dsat's units (proto/trial.h), all per optimizer step.
struct HookMetrics {
  double forward_ms = 0;
  double backward_ms = 0;
  double step_ms = 0;
  double latency_ms = 0;
  double flops_per_gpu = 0;     // FLOP/s; 0 = not known.
  double train_batch_size = 0;  // That the engine really used.
};

// nullopt if the file is not whole or not sensible (yet): no object, a time or the throughput
// missing, not finite or not positive. `logged_ms`: forward + backward + step of a printed line, if
// any; it tells the two oldest formats apart, which differ in nothing but the unit.
std::optional<HookMetrics> NormalizeMetrics(const Json& file, int64_t accumulation_steps,
                                            int64_t train_batch_size,
                                            std::optional<double> logged_ms);

// True if the engine used the train_batch_size that it was given, up to rounding.
bool UsedBatchSize(const HookMetrics& metrics, int64_t train_batch_size);

// The trial's measurement. `lines` are all step lines in order; those after the profiled step
// `start` and before the last step `end` are used if there are enough of them: two, or one where
// the file's own numbers are known to be biased (DeepSpeed trims the mean over 6 and more
// micro-steps, and with it the only optimizer update).
Measurement MeasurementOf(const HookMetrics& metrics, const std::vector<StepLine>& lines,
                          int64_t start, int64_t end, int64_t accumulation_steps,
                          int64_t train_batch_size);

// The largest "MaxMemAllocated=1.5GB" of a log, bytes; nullopt if there is none.
std::optional<double> MaxMemAllocated(std::string_view log);

// A model info file; activations of a forward pass with `micro_batch_size` samples. nullopt if the
// file is not whole. Below 1 MiB the activations count as 1 MiB: what one sample leaves alive may
// be nothing or less, and is divided by. device_memory_bytes is the file's gpu_mem if it has one,
// else 0.
std::optional<ModelProfile> NormalizeModelInfo(const Json& file, int64_t micro_batch_size);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_DEEPSPEED_METRICS_H_
