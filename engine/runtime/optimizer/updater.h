// The optimizer in a step: updates of sub-groups on the tier of their state, and the copy of the
// updated parameters to the tier of the parameters (ZeRO-Offload, Ren et al. 2021).
//
// 1-bit Adam (Tang et al. 2021; DeepSpeed's OnebitAdam) is Adam until freeze_step. Then the
// variance stays as it is, no gradient is reduced any more, and what ranks exchange is one bit per
// element of the momentum.
#ifndef DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_
#define DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/runtime/optimizer/compressed_average.h"
#include "engine/runtime/optimizer/grad_norm.h"
#include "engine/runtime/optimizer/lamb.h"
#include "engine/runtime/optimizer/param_pieces.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

struct UpdateInputs {
  OptimizerConfig optimizer;  // With the learning rate and betas of this step.
  int64_t step = 1;           // The optimizer's count, 1 at the first.
  StepScales scales;
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

#endif  // DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_
