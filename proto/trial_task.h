// The task of the ranks of a built-in trial: one JSON file per attempt, written by the launcher.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"

namespace dsat {

// The text to generate, and how to draw it.
struct GenerateTask {
  std::string prompt;
  int64_t max_new_tokens = 200;
  double temperature = 0.8;  // 0: always the most probable token.
  int64_t top_k = 0;         // Draw from the most probable tokens only; 0: from all.
  int64_t num_samples = 1;
};

// The steps to trace, and the path of the trace (docs/engine.md).
struct TraceTask {
  std::string path;        // "" = no trace.
  int64_t first_step = 4;  // Counted from 1 at the first step of this run.
  int64_t last_step = 6;
};

// When a full training saves and validates.
struct TrainingOptions {
  int64_t checkpoint_interval = 0;  // Steps between checkpoints; 0 = only at the end.
  int64_t checkpoint_seconds = 0;   // The most between checkpoints; 0 = no limit.
  int64_t keep = 1;                 // The number of newest checkpoints that stay.
  bool keep_best = false;           // The checkpoint with the lowest validation loss stays, too.
  int64_t eval_interval = 0;        // Steps between validations; 0 = none.
  int64_t eval_batches = 0;         // Batches of train_batch_size samples; 0 = all validation data.
};

struct TrialTask {
  enum class Mode {
    kProfile,   // A step at micro-batch size 1 and one at 2, if it fits; report a ModelProfile.
    kMeasure,   // Report a Measurement of the steps that engine/worker/step_window.h chooses.
    kSoak,      // As kMeasure, of train_steps steps; save a checkpoint halfway and at the end.
    kTrain,     // train_steps steps; report progress, save checkpoints meanwhile and at the end.
    kEvaluate,  // Print the mean loss of a checkpoint over the validation data: text, or one
                // JSON line.
    kGenerate,  // Print what a checkpoint's model writes after a prompt, in the same forms.
  };
  Mode mode = Mode::kMeasure;
  int64_t experiment = 0;
  int64_t trial = 0;
  int64_t attempt = 0;
  Json ds_config = Json::object();
  Json model = Json::object();  // hyperparameters.model
  Json data = Json::object();   // hyperparameters.data
  std::string base_dir;         // Base of relative data paths.
  std::string device = "cpu";   // resources.device
  int64_t device_memory_bytes = 0;
  int64_t host_memory_bytes = 0;
  // kMeasure: the earliest step that counts, from 0; with the last one they say how many steps
  // count at least.
  int64_t start_profile_step = 3;
  int64_t end_profile_step = 5;
  bool fixed_window = false;  // Exactly these steps count.
  double give_up_below = 0;   // As Trial's.
  int64_t train_steps = 0;
  int64_t seed = 42;
  std::string checkpoint_dir;  // kSoak (removed again), kTrain, kEvaluate, kGenerate.
  std::string checkpoint_tag;  // kEvaluate, kGenerate; "" = the newest.
  TrainingOptions training;    // kTrain only, as the next two.
  std::string history_path;    // The path of metrics.jsonl, kTrain only; "" = none.
  TraceTask trace;
  GenerateTask generate;       // kGenerate only.
  bool json = false;           // kEvaluate, kGenerate: prints JSON.
  std::string report_address;  // gRPC target of the runner's TrialService.
};

// Exit codes of dsat-trial.
inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;       // An Error; its message is the last line of the log.
inline constexpr int kExitInfeasible = 3;  // Reported as infeasible by this rank.

Json ToJson(const TrialTask& task);
TrialTask TrialTaskFromJson(const Json& json);

}  // namespace dsat
