// What a model needs on a cluster on paper, and whether it fits, by the engine's own plans.
//
// Every number of bytes is that of engine/runtime/predict.h: what the built-in engine counts when
// it runs the same configuration. Times are estimates (engine/runtime/timeline.h).
#ifndef DSAT_PROFILER_ESTIMATE_H_
#define DSAT_PROFILER_ESTIMATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/config/ds_config.h"
#include "engine/model/layer.h"
#include "engine/runtime/cluster.h"
#include "engine/runtime/predict.h"

namespace dsat::engine {

struct TierNeed {
  int64_t state_bytes = 0;  // Between steps.
  int64_t peak_bytes = 0;   // Highest point within a step.
  int64_t limit_bytes = 0;  // 0: none.
  bool fits() const { return limit_bytes == 0 || peak_bytes <= limit_bytes; }
};

struct Estimate {
  BatchSizes batch;
  int64_t num_stages = 1;         // Pipeline stages.
  std::vector<Prediction> ranks;  // One rank of each pipeline stage; all ranks of one are alike.
  TierNeed device;                // Of the rank that needs most.
  TierNeed host;                  // Of the node that needs most.
  TierNeed disk;                  // The same.
  StepTime time;                  // Of the slowest pipeline stage.
  double samples_per_s = 0;       // 0 if nothing takes time.

  bool fits() const { return device.fits() && host.fits() && disk.fits(); }
};

// One way to run the model: the base config at a stage with an offload.
struct Variant {
  // A strategy's (strategies.h), or "stage_0" or "stage_3_offload_optimizer"; "stage_3_nvme with
  // buffer_size 269217920" where the default is too small for the model's layers.
  std::string name;
  std::optional<Estimate> estimate;
  std::string refused;  // Why there is none.
  int64_t largest_micro_batch = 0;
};

// A change with which a config fits.
struct Change {
  std::string what;  // "train_micro_batch_size_per_gpu 3", "128 ranks"
  Estimate estimate;
};

class Planner {
 public:
  // `source` names the config in messages. `seq_len` is T.
  Planner(Model model, int64_t seq_len, const Cluster& cluster, std::string source);

  // Throws what ParseDsConfig and Predict throw. `warnings` as ParseDsConfig's.
  Estimate Of(const Json& ds_config, std::vector<std::string>* warnings = nullptr) const;

  // The largest micro-batch size up to 65536 that fits, by bisection; 0 if not even 1 does.
  int64_t LargestMicroBatch(const Json& ds_config) const;

  // Every stage with every offload, and nothing else changed.
  std::vector<Variant> Variants(const Json& ds_config) const;

  // What would make a config fit that does not: a smaller micro-batch; the first of activation
  // checkpointing, higher stages and offload that is enough for the same micro-batch; the least
  // number of ranks, a power of two times as many. None, one, two or all three.
  std::vector<Change> NearestChanges(const Json& ds_config) const;

  const Model& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  int64_t seq_len() const { return seq_len_; }
  // Elements of the largest parameter.
  int64_t LargestParam() const;

 private:
  Estimate OnCluster(const Json& ds_config, const Cluster& cluster,
                     std::vector<std::string>* warnings) const;
  std::optional<Change> ChangeOfSettings(const Json& ds_config) const;
  std::optional<Change> ChangeOfRanks(const Json& ds_config) const;

  Model model_;
  int64_t seq_len_;
  Cluster cluster_;
  std::string source_;
};

// What the command line gives, and what it becomes. `model` is a model block (models.h) whose paths
// start at `base_dir`; `data` is a data block, or null: T is seq_len, or the model's longest.
struct PlannerInputs {
  Json model;
  std::string model_what;
  std::string base_dir;
  Json data;
  int64_t seq_len = 0;
  std::string ds_config_source;
};
Planner MakePlanner(const PlannerInputs& inputs, const Cluster& cluster);

// The model block of a GPT with about so many parameters besides the embeddings: 12 L h^2, the
// width h 128 times the depth L, rounded to 128, heads 128 wide (docs/estimate.md). Throws
// kInvalidArgument if it is not in [1e6, 1e14].
Json GptOfSize(double num_params);

}  // namespace dsat::engine

#endif  // DSAT_PROFILER_ESTIMATE_H_
