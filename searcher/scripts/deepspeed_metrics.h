// Reads the files of DeepSpeed's autotuning hooks, of any version, in dsat's units.
//
// The file's times are means over the micro-steps of one optimizer step, and their unit, names and
// scale differ between versions. With the hooks on, DeepSpeed also prints a line per optimizer
// step; the times at which these arrive give the true time of a step, data loading included.
#ifndef DSAT_SEARCHER_SCRIPTS_DEEPSPEED_METRICS_H_
#define DSAT_SEARCHER_SCRIPTS_DEEPSPEED_METRICS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "proto/trial.h"

namespace dsat {

// The number at a key of an object; nullopt if there is none or it is not finite.
std::optional<double> FiniteNumber(const Json& object, const char* key);
// A number of a script without its fraction; at least 0 and at most 2^62. 0 for NaN.
int64_t WholePart(double number);

// The text that identifies DeepSpeed's line per step: "[Rank 0] time (ms) | fwd: 0.16 | ...".
inline constexpr char kStepLineMarker[] = "time (ms) |";

// One optimizer step as DeepSpeed printed it: ms over all its micro-batches.
struct StepLine {
  double forward_ms = 0;
  double backward_ms = 0;
  double step_ms = 0;
  int64_t time_ns = 0;  // When the line arrived.
};
// nullopt for any other line, such as DeepSpeed's breakdown of micro-steps.
std::optional<StepLine> ParseStepLine(std::string_view line);

// The step lines of a log that are complete and at most kMaxStampedLineBytes long.
int64_t CountStepLines(std::string_view log);

// A metrics file in dsat's units (proto/trial.h), all per optimizer step.
struct HookMetrics {
  double forward_ms = 0;
  double backward_ms = 0;
  double step_ms = 0;
  double latency_ms = 0;
  double flops_per_gpu = 0;     // FLOP/s; 0 = not known.
  double train_batch_size = 0;  // The one that the engine has used.
};

// The first key that keeps a metrics file from being used, with its value: a time or the throughput
// that is missing, not finite or not positive. "" if there is none.
std::string ProblemOfMetrics(const Json& file);

// nullopt if the file has a problem. `logged_ms` is forward + backward + step of a printed line, if
// any; it distinguishes the two oldest formats, which differ only in the unit.
std::optional<HookMetrics> NormalizeMetrics(const Json& file, int64_t accumulation_steps,
                                            int64_t train_batch_size,
                                            std::optional<double> logged_ms);

// True if the engine used the train_batch_size that it was given, up to rounding.
bool UsedBatchSize(const HookMetrics& metrics, int64_t train_batch_size);

// The steps that dsat's hook has timed by the clock of rank 0, and that count; without the hook
// there are none.
struct CountedSteps {
  int64_t first = 0;                 // From 0.
  std::vector<double> latencies_ms;  // > 0.
};

// The trial's measurement. `lines` are all step lines in order. Without `counted` steps, those
// after the profiled step `start` and before the last step `end` are used if there are enough of
// them: two, or one where the file's own numbers are known to be biased (DeepSpeed trims the mean
// over 6 and more micro-steps, and with it the only optimizer update). `partial_steps` had fewer
// samples than `train_batch_size`: they are left out, and one step is enough if the last one is
// among them. What is 0 was not measured, and is left out.
Measurement MeasurementOf(const HookMetrics& metrics, const std::vector<StepLine>& lines,
                          int64_t start, int64_t end, int64_t accumulation_steps,
                          int64_t train_batch_size, const std::set<int64_t>& partial_steps = {},
                          const CountedSteps& counted = {});

// The largest "MaxMemAllocated=1.5GB" of a log, bytes; nullopt if there is none.
std::optional<double> MaxMemAllocated(std::string_view log);

// The first key that keeps a model info file from being used, with its value; "" if there is none.
std::string ProblemOfModelInfo(const Json& file);

// Reads a model info file with the activations of a forward pass of `micro_batch_size` samples.
// nullopt if the file has a problem. Activations are at least 1 MiB, because the file's value may
// be 0 or negative and is used as a divisor. device_memory_bytes is the file's gpu_mem, or 0 if it
// has none.
std::optional<ModelProfile> NormalizeModelInfo(const Json& file, int64_t micro_batch_size);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_DEEPSPEED_METRICS_H_
