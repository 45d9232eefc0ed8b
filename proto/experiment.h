// The words around one experiment: what is tuned, how, and the space that is searched.
#ifndef DSAT_PROTO_EXPERIMENT_H_
#define DSAT_PROTO_EXPERIMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/trial.h"

namespace dsat {

// How to search. The defaults are the seeds' (docs/methods.md).
struct SearchOptions {
  int64_t max_trials = 50;  // The profiling trial included.
  int64_t max_concurrent_trials = 16;
  std::optional<int64_t> max_slots;  // Slots of all running trials together.
  std::string metric = "FLOPS_per_gpu";
  std::vector<int> zero_stages = {1, 2, 3};
  int64_t random_seed = 42;
  int64_t start_profile_step = 3;  // First optimizer step measured, counted from 0.
  int64_t end_profile_step = 5;    // Last optimizer step measured.
  bool run_full_experiment = false;
  // Published behaviour to the letter (docs/methods.md lists what differs); else dsat's own.
  bool compat_determined = false;

  int64_t trials_per_random_config = 5;   // random
  std::optional<int64_t> early_stopping;  // random: stop after so many trials without a new best
  double search_range_factor = 1.0;       // binary, asha: stretches the micro-batch range
  int64_t max_rungs = 5;                  // asha
  int64_t min_binary_search_trials = 3;   // asha
  int64_t asha_early_stopping = 0;        // asha
  int64_t divisor = 2;                    // asha
};

// An experiment file after parsing: everything a search needs, fixed at creation.
struct ExperimentSpec {
  std::string name;
  std::string method;                   // "asha", "binary", "random", "grid"
  std::vector<std::string> entrypoint;  // {"builtin"}, or the argv of the user's own command
  std::string config_path;              // The experiment file, absolute.
  std::string model_dir;                // Where relative paths and the command start, absolute.
  // Where the search was started, absolute, and its --out as given there, "" if it was not: `dsat
  // resume` writes to the same place.
  std::string start_dir;
  std::string out_dir;
  int64_t slots_per_trial = 1;      // Ranks of a trial.
  std::string device = "cpu";       // Of the built-in engine: "cpu", "cuda" or "auto".
  int64_t device_memory_bytes = 0;  // Device budget of one rank; 0 = no budget.
  int64_t host_memory_bytes = 0;    // Of one rank, for state that is offloaded; 0 = no budget.
  std::map<std::string, std::string> environment;  // Of trial processes, on top of ours.
  Json hyperparameters = Json::object();  // As in the file, without the two ds_config keys.
  std::string ds_config_path;             // The file the base config came from, "" if inline.
  Json ds_config = Json::object();        // Base config, overwrite_deepspeed_args merged in.
  int64_t max_restarts = 1;               // Attempts after a crash, per trial.
  int64_t max_length_steps = 100;         // Optimizer steps of the full experiment.
  // Model profile given by hand (external experiments): no profiling trial is run for it.
  std::optional<ModelProfile> profile;
  SearchOptions options;
};

// A ds_config key that a search draws, with the values it may take.
struct Knob {
  std::string pointer;
  std::vector<Json> values;
};

struct StageSpace {
  int stage = 0;
  // The largest micro-batch size that is predicted to fit with the knobs as submitted; 0 if not
  // even 1 is. A starting point, not a bound.
  int64_t approx_max_micro_batch = 1;
  int64_t state_bytes = 0;  // Predicted device memory of a rank between steps; 0 if unknown.
  std::vector<Knob> knobs;
};

// What a method may choose from. Built from the profile by profiler/tuning_space.
struct SearchSpace {
  std::vector<StageSpace> stages;
  bool exact = false;  // The sizes are what the engine counts, not estimates.
};

// Whether the built-in engine runs the trials.
bool IsBuiltin(const ExperimentSpec& spec);

// Every field by its own name; ExperimentSpecFromJson reads what ToJson wrote and nothing else.
Json ToJson(const SearchOptions& options);
Json ToJson(const ExperimentSpec& spec);
ExperimentSpec ExperimentSpecFromJson(const Json& json);

// Throws Json::exception if the JSON is not what ToJson writes.
Json ToJson(const SearchSpace& space);
SearchSpace SearchSpaceFromJson(const Json& json);

}  // namespace dsat

#endif  // DSAT_PROTO_EXPERIMENT_H_
