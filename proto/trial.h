// The words around one trial: what is tried, what came of it.
#ifndef DSAT_PROTO_TRIAL_H_
#define DSAT_PROTO_TRIAL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace dsat {

using ExperimentId = int64_t;
using TrialId = int64_t;  // Counts from 0 within its experiment; trial 0 is the profiling trial.

// Why a trial exists.
enum class TrialKind {
  kProfile,    // One step at micro-batch size 1; measures the model. Always trial 0.
  kSubmitted,  // The configuration as submitted, so that the gain over it is measured.
  kSearch,     // Asked for by the method.
};

enum class TrialState {
  kRunning,     // Asked for and not yet told.
  kSucceeded,   // Measured.
  kInfeasible,  // Cannot run here (out of memory, illegal combination): evidence.
  kFailed,      // Crash, hang, lost machine, after all restarts: no evidence.
  kStopped,     // Pruned or cancelled.
};

// The ds_config keys that a trial sets over the base config: JSON pointer -> value.
using Assignment = std::map<std::string, Json>;

// One measured quantity: the median over the profiled steps and its spread (half the interquartile
// range, in the same unit). `samples` is the number of steps behind it.
struct Metric {
  double value = 0;
  double spread = 0;
  int64_t samples = 0;
};

// Metric name -> value. The names and units, everywhere in dsat:
//   FLOPS_per_gpu  FLOP/s per rank: 3 x forward FLOPs x accumulation steps / latency (as DeepSpeed)
//   throughput     samples/s over all ranks: train_batch_size / latency
//   tokens_per_second  over all ranks: throughput x sequence length; text only
//   MFU            model FLOPs utilisation: FLOPS_per_gpu / the device's peak for the type it
//                  computes in (Chowdhery et al. 2022, appendix B: attention as full products,
//                  nothing for recomputing); devices of a known peak only
//   latency        ms per optimizer step, wall clock
//   forward        ms per optimizer step in forward passes (all micro-batches)
//   backward       ms per optimizer step in backward passes, gradient communication included
//   step           ms per optimizer step in the update, parameter communication included
//   peak_bytes     highest device memory in use on any rank, bytes
//   loss           training loss of the last step, nats per token
//   pipeline_idle  part of the latency that rank 0 waits for other pipeline stages; pipelines only
using Measurement = std::map<std::string, Metric>;

// What a launch measured at one micro-batch size and accumulation count.
struct Point {
  int64_t micro_batch_size = 1;
  int64_t accumulation_steps = 1;
};
struct PointResult {
  Point point;
  Measurement measurement;
};

// What the profiling trial learns of the model and the device; sizes are per rank.
struct ModelProfile {
  int64_t num_params = 0;
  int64_t trainable_num_params = 0;
  int64_t activation_bytes_per_sample = 0;  // The most at a time, at micro-batch size 1.
  int64_t device_memory_bytes = 0;          // What one rank may use.
  int64_t forward_flops_per_sample = 0;     // 0 if unknown.
  int64_t two_units_num_params = 0;         // Of the two largest units together; 0 if unknown.
  // What one rank's device reaches while all ranks' do; 0 if unknown.
  int64_t matmul_flops_per_s = 0;     // In products of large matrices, in the training's precision.
  int64_t copy_bytes_per_s = 0;       // Bytes copied within its memory.
  int64_t to_device_bytes_per_s = 0;  // Bytes copied to it from the host's, if that is another;
  int64_t to_host_bytes_per_s = 0;    // and back.
  // Highest device memory in use on any rank, the kernels' workspace included, in a step of one
  // micro-batch of 1 sample, and of 2; 0 if not measured: 2 are not run if they are predicted not
  // to fit.
  int64_t micro_batch_1_peak_bytes = 0;
  int64_t micro_batch_2_peak_bytes = 0;
  // What the built-in engine ran on; empty and 0 of a profile that came from elsewhere.
  std::string device = {};  // "cpu" or "cuda".
  int64_t num_threads = 0;  // Compute threads of a rank, the most of any.
};

// A proposal that was predicted not to fit: the method was told so, and no trial was launched.
struct Refusal {
  Assignment assignment;
  std::string reason;
};

// How a trial, or one attempt at it, ended.
struct Outcome {
  TrialState state = TrialState::kFailed;
  std::string reason;  // "" if succeeded; else one line for a person.
};

struct Trial {
  TrialId id = 0;
  TrialKind kind = TrialKind::kSearch;
  Assignment assignment;
  Json ds_config;  // The whole config that runs: base + assignment, batch sizes resolved.
  TrialState state = TrialState::kRunning;
  std::string reason;
  std::vector<PointResult> points;      // In the order measured; one for asha, binary and random.
  std::optional<ModelProfile> profile;  // Trial 0 only.
};

// Text forms used in the database, JSON and tables: "profile", "succeeded", ...
std::string ToString(TrialKind kind);
std::string ToString(TrialState state);
// Throw kInvalidArgument naming the text and the valid ones.
TrialKind ParseTrialKind(const std::string& text);
TrialState ParseTrialState(const std::string& text);

Json ToJson(const Measurement& measurement);
Json ToJson(const ModelProfile& profile);
Json ToJson(const Assignment& assignment);
Json ToJson(const Refusal& refusal);
// A measurement as {"throughput": {"value": ..., "spread": ..., "samples": ...}} or, as people
// write it by hand, {"throughput": 12.5}. Throws kInvalidArgument naming `what`, the key and the
// value if a metric is unknown, negative or not finite.
Measurement MeasurementFromJson(const Json& json, const std::string& what);
// The same test of a measurement that did not come as JSON.
void CheckMeasurement(const Measurement& measurement, const std::string& what);
// Takes DeepSpeed's names of the same numbers too (activation_mem_per_gpu, gpu_mem).
// Throws kInvalidArgument naming `what` and the missing, unknown or non-positive key.
ModelProfile ProfileFromJson(const Json& json, const std::string& what);
Assignment AssignmentFromJson(const Json& json);
Refusal RefusalFromJson(const Json& json);

// The batch sizes of the trial's config: where a trial of one point is measured.
Point ConfigPoint(const Trial& trial);

// The measured value of `metric` at the trial's best point, nullopt if it has none.
std::optional<double> MetricValue(const Trial& trial, const std::string& metric);

// The metrics a search may optimise, in the order shown to users.
const std::vector<std::string>& SearchMetrics();
// True if smaller is better (latency, forward, backward).
bool SmallerIsBetter(const std::string& metric);
// The unit of a metric for people: "samples/s", "ms", ...
std::string MetricUnit(const std::string& metric);

}  // namespace dsat

#endif  // DSAT_PROTO_TRIAL_H_
