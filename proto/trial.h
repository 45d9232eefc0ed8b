// The types that describe one trial: its configuration and its results.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/json.h"

namespace dsat {

using ExperimentId = int64_t;
using TrialId = int64_t;  // Counts from 0 within its experiment; trial 0 is the profiling trial.

// Why a trial exists.
enum class TrialKind {
  kProfile,    // A step each at micro-batch sizes 1 and 2; measures the model. Always trial 0.
  kSubmitted,  // The configuration as submitted, so that the gain over it is measured.
  kSearch,     // Asked for by the method.
  kConfirm,    // Measures an earlier configuration again, after the search.
  kReference,  // The submitted configuration with the global batch of the pick, for its losses.
  kSoak,       // A longer run of the pick: does it keep fitting, and does it train alike?
  kLarger,     // The pick with a larger global batch than the one that is kept: is it worth it?
};
constexpr EnumNames<TrialKind, 7> NamesOf(TrialKind) {
  return {"trial kind",
          {{{TrialKind::kProfile, "profile"},
            {TrialKind::kSubmitted, "submitted"},
            {TrialKind::kConfirm, "confirm"},
            {TrialKind::kReference, "reference"},
            {TrialKind::kSoak, "soak"},
            {TrialKind::kLarger, "larger"},
            {TrialKind::kSearch, "search"}}}};
}

enum class TrialState {
  kRunning,     // The method has asked for it and has not been told its end.
  kSucceeded,   // Measured.
  kInfeasible,  // Cannot run here (out of memory, illegal combination), which is evidence.
  kFailed,      // Crash, hang, lost machine, after all restarts: no evidence.
  kStopped,     // Pruned or canceled.
};
constexpr EnumNames<TrialState, 5> NamesOf(TrialState) {
  return {"trial state",
          {{{TrialState::kRunning, "running"},
            {TrialState::kSucceeded, "succeeded"},
            {TrialState::kInfeasible, "infeasible"},
            {TrialState::kFailed, "failed"},
            {TrialState::kStopped, "stopped"}}}};
}

// The ds_config keys that a trial sets over the base config: JSON pointer -> value.
using Assignment = std::map<std::string, Json>;

// One measured quantity: the median over the profiled steps and its spread (half the interquartile
// range, in the same unit). `samples` is the number of steps behind it.
struct Metric {
  double value = 0;
  double spread = 0;
  int64_t samples = 0;
};

// The standard error of metric.value, in its unit, as for independent normal noise of this spread:
// about 1.86 x spread / sqrt(samples), raised for few samples, whose spread says little. The true
// value is within two standard errors in about 95 % of all measurements, in at least 85 % even of
// those of two samples. Infinite for fewer than two samples.
double StandardError(const Metric& metric);

// Median, and half the interquartile range (quartiles interpolated between adjacent values).
// REQUIRES: values is not empty.
Metric Summarize(std::vector<double> values);

// Metric name -> value. The names and units, everywhere in dsat:
//   FLOPS_per_gpu  FLOP/s per rank: 3 x forward FLOPs x accumulation steps / latency, as DeepSpeed;
//                  recorded with the experiment's FLOPs per sample (RankFlopsPerSample)
//   throughput     samples/s over all ranks: train_batch_size / latency
//   tokens_per_second  over all ranks: throughput x sequence length; text only
//   MFU            model FLOPs utilization: FLOPS_per_gpu / the device's peak for its compute type
//                  (Chowdhery et al. 2022, appendix B: attention counts as full multiplications,
//                  recomputation does not count); only for devices whose peak is known
//   latency        ms per optimizer step, wall clock
//   forward        ms per optimizer step in forward passes (all micro-batches)
//   backward       ms per optimizer step in backward passes, including gradient communication
//   step           ms per optimizer step in the update, including parameter communication
//   peak_bytes     highest device memory in use on any rank, bytes
//   loss           training loss of the last step, nats per token
//   pipeline_idle  fraction of the latency in which rank 0 waits for other pipeline stages; only
//                  with a pipeline
//   data_wait      fraction of the latency in which the rank that waits longest waits for its data
//                  loader; of user's commands, if known
//   skipped_steps  optimizer steps of the launch that were skipped because gradients overflowed in
//                  fp16; only if there are any, and only of the built-in engine
//   host_bytes     highest resident host memory of any rank, bytes; if known
//   checkpoint_ms  ms that a checkpoint takes; of soaks of the built-in engine that save some
//   alloc_retries  how often a rank's allocator had to flush its cache to find memory, the most of
//                  any rank; of user's commands, if known
using Measurement = std::map<std::string, Metric>;

// The measurement of a launch at one micro-batch size and accumulation count.
struct Point {
  int64_t micro_batch_size = 1;
  int64_t accumulation_steps = 1;
};
struct PointResult {
  Point point;
  Measurement measurement;
  // The training loss of each optimizer step from the first one on, over all ranks; NaN where it
  // was not finite. Empty if losses are not known.
  std::vector<double> losses = {};
  // Highest device memory in use on each rank; empty if not known.
  std::vector<int64_t> rank_peak_bytes = {};
  // Whether the import hook has changed batch sizes that the script decides about itself: without
  // the hook it would train with its own.
  bool by_hook = false;
};

// The needs of a rank at a place, as a dry run of the script has found them. A pair of a start and
// a slope means start + slope * micro-batch size.
struct DryPlace {
  int64_t stage = 0;
  bool offloads_optimizer = false;
  bool offloads_params = false;
  bool switched = false;  // The trainer's checkpointing is the opposite of the submitted one.
  std::vector<std::vector<double>> lines = {};  // Bytes of device memory: the most of these pairs.
  // A pair: ms of the passes of a micro-batch, by the speeds of the device; and ms of the update.
  // 0 if unknown.
  std::vector<double> passes_ms = {0, 0};
  double update_ms = 0;
  // Calls of collectives, and the bytes that a ring sends in them: in the passes of a step, or from
  // stage 2 on of a micro-batch; and in the update.
  std::vector<double> passes_sent = {0, 0};
  std::vector<double> update_sent = {0, 0};
};

// The profiling trial's measurement of the model and the device. Sizes are per rank.
struct ModelProfile {
  int64_t num_params = 0;
  int64_t trainable_num_params = 0;
  int64_t activation_bytes_per_sample = 0;  // The peak, at micro-batch size 1.
  int64_t device_memory_bytes = 0;          // The memory that one rank may use.
  int64_t forward_flops_per_sample = 0;     // 0 if unknown.
  int64_t two_units_num_params = 0;         // The two largest units together; 0 if unknown.
  // The speeds of one rank's device while all ranks measure theirs; 0 if unknown.
  int64_t matmul_flops_per_s = 0;     // Large matrix multiplications in the training precision.
  int64_t copy_bytes_per_s = 0;       // Copies within its memory.
  int64_t to_device_bytes_per_s = 0;  // Copies from host memory to a GPU.
  int64_t to_host_bytes_per_s = 0;    // Copies from a GPU to host memory.
  int64_t link_bytes_per_s = 0;       // Sent to the next rank.
  // Highest device memory in use on any rank, including the kernels' workspace, in a step of one
  // micro-batch of 1 sample and of 2 samples; 0 if not measured. 2 samples are not run if they are
  // predicted not to fit.
  int64_t micro_batch_1_peak_bytes = 0;
  int64_t micro_batch_2_peak_bytes = 0;
  // For each micro-batch size that was timed, in increasing order: the size, the ms of its forward
  // and backward pass together, and the ms of norm, update and gathering; medians of a few steps.
  // Empty in a pipeline, and for a script.
  std::vector<std::vector<double>> timings = {};
  // The device that the built-in engine ran on; empty in a profile that came from elsewhere, except
  // for "cpu" of a DeepSpeed script that has no GPU. The number of threads is then 0.
  std::string device = {};  // "cpu" or "cuda".
  int64_t num_threads = 0;  // Compute threads of a rank, the most of any.
  // The submitted arguments of a script's trainer, by name (/dsat/trainer, engine/config/keys.cc).
  Json trainer = Json::object();
  // From a dry run (docs/estimate.md), the submitted place first; empty if a launch has measured
  // the profile. `process_bytes` is the memory of a rank's process besides its tensors, where both
  // are the device memory.
  std::vector<DryPlace> dry_places = {};
  int64_t process_bytes = 0;
};

// How a proposal of the method was answered without a trial of its own.
struct Answered {
  Assignment assignment;
  std::string reason;  // Why the configuration cannot run; "" if an equal one runs or has run.
  // The trial of that equal configuration, whose result is the answer once it has ended.
  std::optional<TrialId> trial;
};

// How a trial or an attempt ended.
struct Outcome {
  TrialState state = TrialState::kFailed;
  std::string reason;  // "" if it succeeded; else one line.
  // A failure that the same machine would repeat, so that no other attempt is made. The log of an
  // experiment does not keep it.
  bool recurs = false;
};

// When a trial's first attempt started and its last one ended, in seconds that the search has run;
// 0 if unknown. Pauses between two runners do not count.
struct TrialTimes {
  double started_s = 0;
  double ended_s = 0;
  // The part in [0, 1] of the machine's processor time that other processes used meanwhile; 0 if
  // unknown, and of trials on other hosts or on GPUs.
  double others = 0;
  double seconds() const { return ended_s - started_s; }
};

struct Trial {
  TrialId id = 0;
  TrialKind kind = TrialKind::kSearch;
  Assignment assignment;
  Json ds_config;  // The whole config that runs: base + assignment, batch sizes resolved.
  TrialState state = TrialState::kRunning;
  std::string reason;
  std::vector<PointResult> points;      // In the order measured; one for asha, binary and random.
  std::optional<ModelProfile> profile;  // Profiling trials only.
  // In confirm, reference and soak trials, the trial whose configuration runs again.
  std::optional<TrialId> confirms = {};
  // The measuring may end early once the throughput is clearly below this (samples/s); 0: never.
  double give_up_below = 0;
  int64_t steps = 0;  // The optimizer steps of a soak trial.
  TrialTimes times = {};
};

// Whether trials of this kind run an earlier trial's configuration again, after the search.
bool RunsAgain(TrialKind kind);

Json ToJson(const Measurement& measurement);
// The losses of an array, in which null is NaN, as Json writes it.
std::vector<double> LossesFromJson(const Json& json);
Json ToJson(const ModelProfile& profile);
// Reads a measurement such as {"throughput": {"value": ..., "spread": ..., "samples": ...}}, or in
// short {"throughput": 12.5}. Throws kInvalidArgument naming `what`, the key and the value if a
// metric is unknown, negative or not finite.
Measurement MeasurementFromJson(const Json& json, const std::string& what);
// Also accepts DeepSpeed's names of these numbers (activation_mem_per_gpu, gpu_mem).
// Throws kInvalidArgument naming `what` and the missing, unknown or non-positive key.
ModelProfile ProfileFromJson(const Json& json, const std::string& what);
Assignment AssignmentFromJson(const Json& json);

// JSON pointers of the ds_config keys that every trial has a value of.
inline constexpr char kStageKey[] = "/zero_optimization/stage";
inline constexpr char kMicroBatchKey[] = "/train_micro_batch_size_per_gpu";
inline constexpr char kAccumulationKey[] = "/gradient_accumulation_steps";

// The ZeRO stage of a trial's config; 0 if it has no number there.
int ZeroStage(const Json& ds_config);

// The batch sizes of the trial's config, at which a trial of one point is measured.
Point ConfigPoint(const Trial& trial);

// Sets the batch sizes of a config to those of a point. train_batch_size, which follows from them,
// is removed.
void SetPoint(Json& ds_config, const Point& point);

// The logarithm of the share of the processors' time that other processes left, at least a tenth.
double LogLeft(const Trial& trial);

// The measured value of `metric` at the trial's best point, nullopt if it has none.
std::optional<double> MetricValue(const Trial& trial, const std::string& metric);

// The trial's best point by `metric`; nullptr if no point has the metric.
const PointResult* BestPoint(const Trial& trial, const std::string& metric);

// Another metric, `name`, at that point; nullptr if it was not measured there.
const Metric* MetricAtBest(const Trial& trial, const std::string& metric, const std::string& name);
// Its value; nullopt likewise.
std::optional<double> ValueAtBest(const Trial& trial, const std::string& metric,
                                  const std::string& name);
// The trial's best point, or the batch sizes of its config if no point has the metric.
Point BestOrConfigPoint(const Trial& trial, const std::string& metric);

// The metrics that a search can optimize, in the order shown to users.
const std::vector<std::string>& SearchMetrics();
// True if smaller is better (latency, forward, backward).
bool SmallerIsBetter(const std::string& metric);
// The unit of a metric: "samples/s", "ms", ...
std::string MetricUnit(const std::string& metric);

// FLOPs per sample of the whole batch, forward and backward, divided by the ranks: FLOPS_per_gpu /
// throughput. nullopt if one of them was not measured or is 0.
std::optional<double> RankFlopsPerSample(const Measurement& measurement);

// The measurement with FLOPS_per_gpu = throughput x `rank_flops_per_sample`, and MFU in proportion.
// Unchanged if it lacks one of the two.
Measurement WithFlopsPerSample(Measurement measurement, double rank_flops_per_sample);

}  // namespace dsat
