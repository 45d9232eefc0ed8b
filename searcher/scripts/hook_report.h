// The file in which a rank of a script tells dsat what it ran and measured: hook-rank<R>.json in
// the attempt's folder (docs/dev/scripts.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// The settings that a rank reports of its engine, and their keys in a ds_config.
inline constexpr std::pair<const char*, const char*> kRanSettings[] = {
    {"train_micro_batch_size_per_gpu", kMicroBatchKey},
    {"gradient_accumulation_steps", kAccumulationKey},
    {"zero_stage", kStageKey},
    {"reduce_bucket_size", "/zero_optimization/reduce_bucket_size"},
    {"allgather_bucket_size", "/zero_optimization/allgather_bucket_size"},
};

// The settings of an engine, as far as they are known.
struct RanConfig {
  std::map<std::string, double> settings;  // JSON pointers of a ds_config -> numbers.
  int64_t data_parallel_size = 0;          // 0 if unknown.
};

// One optimizer step that was measured, in ms. A part that was not measured is 0.
struct MeasuredStep {
  double latency_ms = 0;  // > 0.
  double forward_ms = 0;
  double backward_ms = 0;
  double update_ms = 0;
};

// The content of the file. Keys that the file lacks have the values below.
struct HookReport {
  bool config_applied = false;
  std::string engine = {};      // "DeepSpeedEngine", "PipelineEngine", ...
  int64_t world_size = 0;       // The number of ranks; 0 if unknown.
  bool on_cpu = false;          // The rank uses no GPU.
  bool changed_script = false;  // The hook has changed batch sizes that the script decides about.
  RanConfig ran = {};
  int64_t num_steps = 0;                 // Optimizer steps that have ended, measured or not.
  double samples = 0;                    // Samples of a step on all ranks; 0 if unknown.
  double flops = 0;                      // FLOPs of a step on this rank; 0 if unknown.
  int64_t first_counted_step = 0;        // The number of steps[0], from 0.
  std::vector<MeasuredStep> steps = {};  // The steps that count; empty until all are measured.
  std::string problem = {};              // The key that makes the result unusable; "" if none.
  Json profile = {};                     // An object as for ProfileFromJson, or null.
  std::string error = {};                // Why a dry run gives no profile; "" if it gives one.
  bool recurs = false;                   // A launch would end by that error, too.
  std::optional<double> peak_bytes = {};
  std::optional<double> host_bytes = {};
  std::optional<double> alloc_retries = {};
  std::optional<double> data_wait = {};     // The share of a step's time, 0 to 1.
  bool has_ended = false;                   // The rank has written its result.
  std::vector<double> losses = {};          // One for each step; NaN if it is not finite.
  int64_t largest_batch = 0;                // Samples of the largest forward pass; 0 if unknown.
  std::vector<int64_t> partial_steps = {};  // Steps with fewer samples than they were to have.
};

// Reads the text of such a file, in which Python may write NaN and Infinity. Returns nullopt if it
// is no complete JSON object.
std::optional<HookReport> ReadHookReport(const std::string& text);

// Returns the measurement of the ranks in steps of `train_batch_size` samples: the times of rank 0,
// except for partial steps of any rank, and the highest memory of all ranks. A metric that was not
// measured is left out. REQUIRES: reports[0].steps is not empty.
Measurement MeasurementOf(const std::vector<HookReport>& reports, int64_t train_batch_size);

// The model's profile in rank 0's report, with a memory of `device_memory_bytes`, or the report's
// if that is 0. Activations are at least 1 MiB a sample, because what a script measures may be 0
// and is used as a divisor. Throws kInvalidArgument as ProfileFromJson, naming `what`. REQUIRES:
// the report has a profile.
ModelProfile ProfileOf(const HookReport& report, int64_t device_memory_bytes,
                       const std::string& what);

// The request for a dry run of the profiling trial's `ds_config` at the submitted batch sizes,
// which answers with the report of a rank. Times are those of a GPU with the gpu_speeds of
// spec.machine, or of a core here. Throws as DryRunRequest.
Json DryProfileRequest(const ExperimentSpec& spec, Json ds_config, bool on_gpu);

// A shell's command that makes this request, for a device as here, in at most about a minute, and
// writes the answer to the file `report`. "" if a shell hides the script.
std::string ProfileByDryRun(const ExperimentSpec& spec, const Json& ds_config,
                            const std::string& report);

// Whether a rank has made its engine, and not all ranks have written their last report, which they
// do at their end.
bool AreReportsMissing(const std::vector<HookReport>& reports);

// The means over the ranks that know their losses (of a pipeline, those of the last stage), of the
// steps that all of them have; empty unless all ranks with an engine have ended, because the mean
// over some of them would be another number.
std::vector<double> MeanLosses(const std::vector<HookReport>& reports);

// The number that the first group of `pattern` matches in each line of a log; NaN if the match is
// not a number. Lines that are very long are skipped. REQUIRES: the pattern is a valid one with a
// group (ValidateOptions).
std::vector<double> LossesInLog(const std::string& path, const std::string& pattern);

// Why the ranks that ran, or those of them that share samples, are not those of a trial of `spec`;
// "" if they are, or if the report does not say.
std::string MisfitOfRanks(const HookReport& report, const ExperimentSpec& spec);

// Why the samples of the rank's forward passes are not those of a trial with `micro_batch`; "" if
// they are, or if the report does not say. `others` has the largest batches of earlier launches by
// their micro-batch sizes. The reason names the flag of the entrypoint that feeds them, if one has
// their size.
std::string MisfitOfBatches(const HookReport& report, int64_t micro_batch,
                            const std::map<int64_t, int64_t>& others, const ExperimentSpec& spec);

// "train_micro_batch_size_per_gpu is 8 instead of 51, ..." for all settings that `asked`, the
// trial's ds_config, gives as another number; "" if there is none.
std::string Rewritten(const RanConfig& ran, const Json& asked);

}  // namespace dsat
