// Pipeline parallelism: the layers of each stage, and the process groups between ranks (Huang et
// al. 2019, Narayanan et al. 2019). plan/schedule.h gives the order of work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/core/arena.h"
#include "engine/model/layer.h"
#include "engine/plan/plan.h"

namespace dsat::engine {

// The first layer of every stage, and the number of layers: stage s has layers [begins[s], begins[s
// + 1]). `method` is DeepSpeed's partition_method: "uniform" divides layers, "parameters" and
// "best" divide parameters, "type:REGEX" divides the layers whose name matches, whatever the case.
// The heaviest stage has as few of them as possible, and then the lightest one as many as possible.
// Throws kInvalidArgument naming `what`, the method and the way out if it is none of these, matches
// nothing, or there are fewer layers than stages.
std::vector<int> PartitionLayers(const Model& model, int num_stages, const std::string& method,
                                 const std::string& what);

// The groups a rank is in. rank = stage * P + data-parallel rank, as in DeepSpeed.
class Groups {
 public:
  // A collective call. REQUIRES: num_stages divides world.size(). `world` must outlive this.
  Groups(ProcessGroup& world, int num_stages);

  ProcessGroup& world() const { return world_; }
  // The ranks with the same layers.
  ProcessGroup& data() const { return data_ ? *data_ : world_; }
  // The ranks with the same samples, by stage. REQUIRES: more than one stage.
  ProcessGroup& pipeline() const { return *pipeline_; }
  int stage() const { return world_.rank() / data().size(); }
  int num_stages() const { return world_.size() / data().size(); }
  // The traffic of all three groups.
  Traffic traffic() const;

 private:
  ProcessGroup& world_;
  std::unique_ptr<ProcessGroup> data_;
  std::unique_ptr<ProcessGroup> pipeline_;
};

// Sums the gradients of trained units that several stages hold a copy of (tied embeddings), so that
// every copy takes the same update.
class TiedUnits {
 public:
  // A collective call if the plan has such units. `groups` must outlive this. Throws
  // kUnimplemented if they are not all held by the same stages, OutOfMemory for the bucket.
  TiedUnits(const Model& model, const Plan& plan, DType dtype, const Groups& groups, Arena& arena);
  // grad (n) = its sum over the stages. REQUIRES: one of the constructor's units' gradients, which
  // rests on `tier`; `kernels` are the device's.
  void Sum(Tensor grad, Tier tier, Kernels& kernels);
  Traffic traffic() const { return group_ == nullptr ? Traffic{} : group_->traffic(); }

 private:
  std::unique_ptr<ProcessGroup> group_;
  Buffer charge_;
  CommBuffer bucket_;
};

// Bytes of the input of every layer and of the output of the last, for one micro-batch of the shape
// of `batch`: found by running the layers on the counting backend.
std::vector<int64_t> InputBytes(const Model& model, const Batch& batch, DType dtype);

}  // namespace dsat::engine
