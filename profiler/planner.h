// Predicts what a model needs on a cluster, and whether it fits, from the engine's own plans.
//
// Every number of bytes comes from engine/runtime/predict.h and is what the built-in engine counts
// when it runs the same configuration. Times are estimates (engine/runtime/timeline.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/config/ds_config.h"
#include "engine/model/layer.h"
#include "engine/runtime/cluster.h"
#include "engine/runtime/predict.h"
#include "profiler/predictor.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// An estimate that the engine's plan has been counted for, rank by rank.
struct PlannerEstimate : Estimate {
  engine::BatchSizes batch;
  int64_t num_stages = 1;                 // Pipeline stages.
  std::vector<engine::Prediction> ranks;  // One of each pipeline stage; the others are equal.
  engine::StepTime time;                  // The slowest pipeline stage's.
  double samples_per_s = 0;               // 0 if nothing takes time.
};

// One way to run the model: the base config at a stage with an offload.
struct Variant {
  // The name of a strategy (strategies.h), for example "stage_3_nvme with buffer_size 269217920" if
  // the default is too small for the model's layers.
  std::string name;
  std::optional<PlannerEstimate> estimate;
  std::string refused;  // Why there is no estimate.
  int64_t largest_micro_batch = 0;
};

// A change with which a config fits.
struct Change {
  std::string what;  // "train_micro_batch_size_per_gpu 3", "128 ranks"
  PlannerEstimate estimate;
};

class Planner : public Predictor {
 public:
  // `source` names the config in messages. `seq_len` is T.
  Planner(engine::Model model, int64_t seq_len, const engine::Cluster& cluster, std::string source);

  // Computing is predicted to take as long as was measured: `timings` (ModelProfile) are those of
  // `ds_config` without accumulation. Between two sizes, and above the largest, the time is linear.
  void Calibrate(const Json& ds_config, const std::vector<std::vector<double>>& timings);

  // Throws what ParseDsConfig and engine::Predict throw. `warnings` as ParseDsConfig's.
  PlannerEstimate Of(const Json& ds_config, std::vector<std::string>* warnings = nullptr) const {
    return OnCluster(ds_config, cluster_, warnings);
  }
  Estimate Predict(const Json& ds_config) const override { return Of(ds_config); }
  // Bisects sizes up to 65536.
  int64_t LargestMicroBatch(const Json& ds_config) const override;

  // Every stage with every offload; nothing else is changed.
  std::vector<Variant> Variants(const Json& ds_config) const;

  // Changes with which a config fits that does not fit as it is: a smaller micro-batch, with which
  // a global batch that is given stays; the first of activation checkpointing, higher stages and
  // offload that suffices for the same micro-batch; and the smallest power of two by which the
  // number of ranks must be multiplied. Changes that do not suffice are left out.
  std::vector<Change> NearestChanges(const Json& ds_config) const;

  const engine::Model& model() const { return model_; }
  const engine::Cluster& cluster() const { return cluster_; }
  int64_t seq_len() const { return seq_len_; }

 private:
  PlannerEstimate OnCluster(const Json& ds_config, const engine::Cluster& cluster,
                            std::vector<std::string>* warnings) const;
  std::optional<Change> ChangeOfMicroBatch(const Json& ds_config) const;
  std::optional<Change> ChangeOfSettings(const Json& ds_config) const;
  std::optional<Change> ChangeOfRanks(const Json& ds_config) const;

  engine::Model model_;
  int64_t seq_len_;
  engine::Cluster cluster_;
  std::string source_;
  // A micro-batch size that was timed, and the ms of its computing by the speeds and as measured.
  struct Timed {
    double micro_batch_size, predicted_ms, measured_ms;
  };
  double ComputeTimes(int64_t micro_batch_size) const;
  std::vector<Timed> timed_;
  double update_times_ = 1;  // How many times as long an update takes as the speeds say.
};

// The inputs of a planner. `model` is a model block (models.h) whose paths start at `base_dir`, and
// `model_what` names it in messages; `data` is a data block, or null: T is seq_len, or the model's
// longest.
struct PlannerInputs {
  Json model;
  std::string model_what;
  std::string base_dir;
  Json data;
  int64_t seq_len = 0;
  std::string ds_config_source;
};
// The inputs that an experiment of the built-in engine gives.
PlannerInputs PlannerInputsOf(const ExperimentSpec& spec);
Planner MakePlanner(const PlannerInputs& inputs, const engine::Cluster& cluster);

// FLOP/s and bytes/s of a rank's device, for the times of a dry run (python/dsat/_dry_run.py).
Json SpeedsOfDryRun(const engine::Cluster& cluster, const Json& ds_config);

// Gives the profile of a model the memory and the speeds of a rank of the cluster.
void PutOn(const engine::Cluster& cluster, ModelProfile& profile);

// The profile of the built-in engine's model, without a trial. Throws as MakeModel (models.h), and
// as Predict for a config that the engine refuses.
ModelProfile ProfileByDataSheet(const ExperimentSpec& spec, const engine::Cluster& cluster);

}  // namespace dsat
