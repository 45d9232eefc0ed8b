// The types that describe one experiment: what is tuned, how, and the search space.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/comparison.h"
#include "proto/trial.h"

namespace dsat {

// The new limits of an experiment (SearchOptions); nullopt: unchanged.
struct LimitsRaised {
  std::optional<int64_t> max_trials;
  std::optional<double> max_time_s;
  std::optional<double> max_device_hours;
  // The confirmation gets so many rounds, with time for them if no other limit is raised.
  std::optional<int64_t> confirm_rounds = {};
};

// The options of asha, binary and random, which draw configurations.
struct LineageOptions {
  // The first trials are of different stages, until each has one. Older logs, which lack the key,
  // were made without it.
  bool cover_stages = false;
  double search_range_factor = 1.0;  // Stretches the micro-batch range of asha and binary.
};

struct RandomOptions {
  int64_t trials_per_random_config = 5;
  std::optional<int64_t> early_stopping;  // Stop after so many trials without a new best.
};

struct AshaOptions {
  int64_t max_rungs = 5;
  int64_t min_binary_search_trials = 3;
  int64_t asha_early_stopping = 0;
  int64_t divisor = 2;
};

struct AutoOptions {
  std::optional<int64_t> run_steps;  // The steps of the training to come, as submitted.
  // The experiment whose measurements are a prior of this search: its number or name, "auto" (the
  // newest one that fits) or "off".
  std::string warm_start = "off";
  // The earlier search that was found when the experiment was created (methods/warm_start.h); null
  // if there was none. A replay needs no other experiment.
  Json prior = Json();
};

// How to search (docs/methods.md). The JSON form has the fields of all structs side by side.
struct SearchOptions {
  int64_t max_trials = 50;  // Including the profiling trial.
  int64_t max_concurrent_trials = 16;
  std::optional<int64_t> max_slots;  // Slots of all running trials together.
  std::string metric = "FLOPS_per_gpu";
  std::vector<int> zero_stages = {1, 2, 3};
  int64_t random_seed = 42;
  int64_t start_profile_step = 3;  // Earliest optimizer step measured, from 0.
  int64_t end_profile_step = 5;    // Optimizer step up to which is measured at least.
  bool run_full_experiment = false;
  // The fixed global batch: micro-batch size and accumulation vary together. nullopt: the global
  // batch follows the micro-batch size, and the accumulation stays as submitted.
  std::optional<int64_t> train_batch_size;
  int64_t divisible_by = 1;  // Micro-batch sizes are multiples of it.
  // The most rounds in which the best configurations are measured again
  // (searcher/search/confirm.h).
  int64_t confirm_rounds = 0;
  // After a confirmation, the losses of the pick are compared with those of the submitted
  // configuration (searcher/search/loss_check.h).
  bool check_losses = false;
  // The optimizer steps of a longer run of the pick; 0: only as many as the comparison of losses
  // needs. `soak_in_budget`: fewer if they would take longer than the confirmation has.
  int64_t soak_steps = 0;
  bool soak_in_budget = false;
  // "dry-run": a dry run of the user's command gives the profile, if it succeeds. "measure", the
  // default of older logs: a launch does.
  std::string profile = "measure";
  // For the user's command, a regular expression whose first group matches the loss of a step in
  // the output of rank 0; "": the losses are those that the Python helper reports.
  std::string loss_pattern;
  // Budgets of the search with its proof; nullopt: none.
  std::optional<double> max_time_s;        // Wall-clock time.
  std::optional<double> max_device_hours;  // Slots times the time that trials run.
  // True: the methods behave exactly as Determined's published ones (docs/methods.md lists the
  // differences).
  bool compat_determined = false;

  // "published", the default of older logs: the knobs of the published methods. "wide": also
  // activation checkpointing, offload and further keys (docs/methods.md).
  std::string space = "published";
  // Whether keys are searched that change what is learned (--allow semantic).
  bool allow_semantic = false;
  AutoOptions auto_method;
  LineageOptions lineages;
  RandomOptions random;
  AshaOptions asha;
};

// A parsed experiment file: everything that a search needs, which is fixed when the experiment is
// created.
struct ExperimentSpec {
  std::string name;
  std::string method;                   // "auto", "asha", "binary", "random", "grid"
  std::vector<std::string> entrypoint;  // {"builtin"}, or the argv of the user's own command
  std::string config_path;              // The experiment file, absolute.
  std::string model_dir;                // Base of relative paths and the command, absolute.
  // The working directory of the search, absolute, and its --out option, "" if not given, so that
  // `dsat resume` writes to the same folder.
  std::string start_dir;
  std::string out_dir;
  int64_t slots_per_trial = 1;      // Ranks of a trial.
  std::string device = "cpu";       // The device of the built-in engine: "cpu", "cuda" or "auto".
  int64_t device_memory_bytes = 0;  // Device budget of one rank; 0 = no budget.
  int64_t host_memory_bytes = 0;    // The budget of one rank for offloaded state; 0 = no budget.
  std::map<std::string, std::string> environment;  // Variables of trial processes, added to ours.
  Json hyperparameters = Json::object();           // As in the file, except the two ds_config keys.
  // The experiment file of a command, with constants in place of {type: const} and a
  // searcher.max_length: the ranks read it.
  Json file = Json::object();
  std::string ds_config_path;       // The file the base config came from, "" if inline.
  Json ds_config = Json::object();  // Base config with overwrite_deepspeed_args.
  // The user's own values (searcher/input/user_space.h): pointer of the ds_config -> array.
  Json search_space = Json::object();
  std::vector<std::string> where;  // Conditions on it, as ParseComparison reads them.
  int64_t max_restarts = 1;        // Attempts after a crash, per trial.
  int64_t max_length_steps = 100;  // Optimizer steps of the full experiment.
  // A model profile given by the user (external experiments), which replaces the profiling trial.
  std::optional<ModelProfile> profile;
  // Not null: instead of a search, this ds_config is compared with ds_config (dsat check).
  Json candidate;
  // The machine and the software that trials run with: host, cpu, cores, gpus, driver and versions,
  // as far as known.
  Json machine = Json::object();
  SearchOptions options;
};

// The predicted change by one value of a knob if everything else is as submitted.
struct KnobEffect {
  double peak_bytes = 0;  // Device memory, added.
  double log_time = 0;    // The natural logarithm of the factor on the time of a step.
};

// A ds_config key that is searched, with its values.
struct Knob {
  std::string pointer;
  std::vector<Json> values;
  // The effect of each value; empty if none is predicted, and for keys that methods know by name.
  std::vector<KnobEffect> effects = {};
};

// A prediction for a place at one micro-batch size, with everything else as submitted. Times are ms
// of a step; 0 if unknown.
struct Forecast {
  int64_t micro_batch_size = 1;
  int64_t accumulation_steps = 1;  // At most 2: more need no more memory.
  int64_t peak_bytes = 0;          // Device memory of the rank that needs most.
  double compute_ms = 0;           // Forward and backward.
  double update_ms = 0;            // Optimizer, with its copies and files.
  double link_ms = 0;              // The time that collectives take, hidden or not.
};

// A place of the space: a ZeRO stage with settings of structural keys.
struct StageSpace {
  int stage = 0;
  // The structural keys in which the places of the stage differ, or that differ from the submitted
  // config: every trial of this place sets them. Places of a stage have different settings.
  Assignment settings = {};
  // The largest micro-batch size that is predicted to fit with the knobs as submitted; 0 if not
  // even 1 is. A starting point, not a bound.
  int64_t approx_max_micro_batch = 1;
  // Host memory or the disk is the limit, so smaller buckets on the device make no room for more.
  bool is_bound_by_host = false;
  int64_t state_bytes = 0;  // Predicted device memory of a rank between steps; 0 if unknown.
  std::vector<Knob> knobs = {};
  std::vector<Forecast> forecasts = {};  // Sizes ascend; empty if nothing is predicted.
  // The values of all searched keys in the submitted config at this stage, defaults included.
  Assignment submitted = {};
};

// The facts about the model and the machine that a method may know. Sizes are per rank, 0 is
// unknown.
struct Workload {
  int64_t num_params = 0;
  int64_t trainable_num_params = 0;
  int64_t bytes_per_param = 4;  // Bytes of a parameter or gradient in the training precision.
  int64_t data_parallel = 1;    // Ranks that share the samples of a step.
  int64_t pipeline_stages = 1;
  int64_t forward_flops_per_sample = 0;
  int64_t matmul_flops_per_s = 0;
  int64_t copy_bytes_per_s = 0;
  int64_t device_memory_bytes = 0;  // The peak that a forecast may reach.
  int64_t accumulation_steps = 1;   // As submitted.
  int64_t micro_batch_size = 1;     // As submitted.
  int64_t stage = 0;                // As submitted.
  // From stage 1 on DeepSpeed allocates reduction buckets, on any number of ranks, as a whole.
  bool whole_buckets = false;
  bool on_cpu = false;  // The device is the CPU, where a bucket takes memory only for its content.
};

// A part of the space that the search does not try, such as "stage 2 with /.../device \"cpu\"", and
// why.
struct LeftOut {
  std::string what;
  std::string why;
};

// The space that a method chooses from. profiler/tuning_space builds it from the profile.
struct SearchSpace {
  std::vector<StageSpace> stages;
  bool exact = false;    // The sizes are what the engine counts, not estimates.
  bool tracked = false;  // The sizes are the bytes of all tensors in a dry run of the script.
  // The samples of one optimizer step on a data-parallel rank if the global batch is fixed, which a
  // micro-batch size has to divide; 0 if it follows the micro-batch size.
  int64_t samples_per_step = 0;
  int64_t divisible_by = 1;                     // Micro-batch sizes are multiples of it.
  std::vector<int64_t> micro_batch_sizes = {};  // The only ones allowed, ascending; empty: all.
  Workload workload = {};
  std::vector<Comparison> where = {};  // Every configuration satisfies them.
  std::vector<LeftOut> left_out = {};
};

// Whether the built-in engine runs the trials.
bool IsBuiltin(const ExperimentSpec& spec);

// Every field is stored by its own name, except that the conditions of a space are those of its
// spec. The readers give absent fields their defaults and throw kInvalidArgument for unknown keys
// and wrong types.
Json ToJson(const SearchOptions& options);
Json ToJson(const ExperimentSpec& spec);
ExperimentSpec ExperimentSpecFromJson(const Json& json);
Json ToJson(const SearchSpace& space);
SearchSpace SearchSpaceFromJson(const Json& json);

// The largest micro-batch size that a method proposes. Only a search of a tiny model or without a
// memory limit reaches it.
inline constexpr int64_t kLargestMicroBatch = 1'000'000;

// The largest divisor of `samples` that is at most `most` and a multiple of `step`; 0 if there is
// none. REQUIRES: samples, step > 0.
int64_t LargestDivisor(int64_t samples, int64_t most, int64_t step = 1);

// The largest micro-batch size of the space that is at most `size`: one of space.micro_batch_sizes
// if there are any, a multiple of space.divisible_by and, if the global batch is fixed, a divisor
// of space.samples_per_step. If all are larger, the smallest one; 0 if there is none.
int64_t LegalMicroBatch(const SearchSpace& space, int64_t size);

}  // namespace dsat
