// The optimizer in a step: updates of sub-groups on the tier of their state, and the copy of the
// updated parameters to the tier of the parameters (ZeRO-Offload, Ren et al. 2021).
//
// 1-bit Adam (Tang et al. 2021; DeepSpeed's OnebitAdam) is Adam until freeze_step. Then the
// variance stays as it is, no gradient is reduced any more, and what ranks exchange is one bit per
// element of the momentum.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/backend/optimizer_kernels.h"
#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/model/layer.h"
#include "engine/plan/plan.h"
#include "engine/runtime/optimizer/compressed_average.h"
#include "engine/runtime/optimizer/grad_norm.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// The inputs that all updates of a step share.
struct UpdateInputs {
  OptimizerConfig optimizer;  // With the learning rate and betas of this step.
  int64_t step = 1;           // The optimizer's count, 1 at the first.
  StepScales scales;
};

// A part of one parameter, with its padding, in one rank's slice of its unit.
struct ParamPiece {
  int64_t param = 0;  // Index in the model.
  int64_t row = 0;    // The rank, if the slices of all of them rest here.
  int64_t begin = 0;  // In the sub-group's OptimizerView.
  int64_t num_elems = 0;
  bool decays = true;  // Not the weight of a normalization, and not a bias.
};

using ParamPieces = std::vector<ParamPiece>;

// LAMB over flat units that may be sharded through the middle of a parameter.
//
// Every parameter's step is scaled by its trust ratio, |parameter| / |direction|, both norms over
// the whole parameter (You et al. 2020; the range of the ratio is DeepSpeed's FusedLamb's). So the
// update has two halves: the moments and every rank's sums of squares; then, with the sums of all
// ranks, the step. One all-reduce, which the plan lists, carries the sums of all parameters.
class Lamb {
 public:
  // A collective call of the data-parallel group; `pieces` are those of each sub-group. Allocates
  // two f32 numbers per parameter for the all-reduce, charged to the device's arena; nothing with
  // one rank, or if optimizer state is not sharded. All arguments must outlive this. Throws
  // OutOfMemory. REQUIRES: no optimizer state rests on disk.
  Lamb(const Plan& plan, const UnitStates& states, const std::vector<ParamPieces>& pieces,
       ProcessGroup& group);

  // Runs kTrustRatios: moments of all sub-groups from their gradients times the factor, then the
  // trust ratio of every parameter, the same bits on every rank and for every placement. A
  // collective call. REQUIRES: every reduced gradient is at the optimizer's home.
  void Prepare(const UpdateInputs& inputs);
  // Updates one sub-group; `view` is all of it. REQUIRES: Prepare was called with the same inputs.
  void Apply(Kernels& kernels, const UpdateInputs& inputs, int sub_group,
             const OptimizerView& view) const;

 private:
  void SumOverRanks();
  int64_t BucketBytes() const { return plan_.world_size * row_elems_ * BytesPerElem(DType::kF32); }

  const Plan& plan_;
  const UnitStates& states_;
  ProcessGroup& group_;
  const std::vector<ParamPieces>& pieces_;
  std::vector<float> sums_;    // Per parameter: of its squares, of its direction's.
  std::vector<float> ratios_;  // Per parameter.
  const int64_t row_elems_;    // The elements of a row of the bucket; 0: there is no bucket.
  Buffer charge_;
  CommBuffer bucket_;
};

class Updater {
 public:
  // A collective call over the data-parallel group. Compression errors start at zero and are in no
  // checkpoint, as in DeepSpeed. All arguments must outlive this. Throws OutOfMemory.
  Updater(const Model& model, const Plan& plan, UnitStates& states, ProcessGroup& group);

  // Whether the host needs the step's factor: for updates in host memory, for updated parameters
  // that go to another tier, or for LAMB's and 1-bit Adam's collectives. If not, kernels alone read
  // it, and updates of a skipped step may be asked for.
  bool host_needs_scale() const { return host_needs_scale_; }
  // Sets what the updates of this step have in common.
  void Begin(const UpdateInputs& inputs) { inputs_ = inputs; }
  // Run the instructions of these names. Collective calls. The second one computes the sub-group's
  // momentum from this rank's own gradients, then its mean over the ranks, the same bits on all.
  void TrustRatios();
  void AverageMomentum(int sub_group);
  // Sets the compression errors of 1-bit Adam, if it is the optimizer, to zero.
  void ResetCompressionErrors();
  // Updates one sub-group. REQUIRES: its state is in memory.
  void Update(int sub_group);

 private:
  void Step(Kernels& kernels, int sub_group, const OptimizerView& view);
  void StepElems(Kernels& kernels, const OptimizerConfig& optimizer, const OptimizerView& view,
                 const StepScale* scale);
  Tensor Target(const SubGroup& group);

  const Plan& plan_;
  UnitStates& states_;
  std::vector<ParamPieces> pieces_;  // Per sub-group.
  std::optional<Lamb> lamb_;         // If it is the optimizer.
  // By unit, on several ranks, if the plan leaves gradients unreduced.
  std::map<int, CompressedAverage> averages_;
  bool host_needs_scale_ = false;
  UpdateInputs inputs_;
};

}  // namespace dsat::engine
