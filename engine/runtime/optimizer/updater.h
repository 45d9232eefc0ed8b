// The optimizer in a step: updates of sub-groups on the tier of their state, and the copy of the
// updated parameters to the tier of the parameters (ZeRO-Offload, Ren et al. 2021).
#ifndef DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_
#define DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/runtime/optimizer/grad_norm.h"
#include "engine/runtime/optimizer/lamb.h"
#include "engine/runtime/optimizer/one_bit_adam.h"
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
  // A collective call over the data-parallel group. All arguments must outlive this. Throws
  // OutOfMemory.
  Updater(const Model& model, const Plan& plan, UnitStates& states, ProcessGroup& group);

  // Whether the host needs the step's factor: for updates in host memory, for updated parameters
  // that go to another tier, or for LAMB's and 1-bit Adam's collectives. If not, kernels alone read
  // it, and updates of a skipped step may be asked for.
  bool host_needs_scale() const { return host_needs_scale_; }
  // Sets what the updates of this step have in common.
  void Begin(const UpdateInputs& inputs) { inputs_ = inputs; }
  // Run the instructions of these names. Collective calls.
  void TrustRatios();
  void AverageMomentum(int sub_group);
  // Sets the compression errors of 1-bit Adam, if it is the optimizer, to zero.
  void ResetCompressionErrors() {
    if (one_bit_adam_) one_bit_adam_->ResetErrors();
  }
  // Updates one sub-group. REQUIRES: its state is in memory.
  void Update(int sub_group);

 private:
  void Step(Kernels& kernels, int sub_group, const OptimizerView& view);
  void StepElems(Kernels& kernels, const OptimizerConfig& optimizer, const OptimizerView& view,
                 const StepScale* scale);
  Tensor Target(const SubGroup& group);

  const Plan& plan_;
  UnitStates& states_;
  std::vector<ParamPieces> pieces_;         // Per sub-group.
  std::optional<Lamb> lamb_;                // If it is the optimizer.
  std::optional<OneBitAdam> one_bit_adam_;  // If the plan leaves gradients unreduced.
  bool host_needs_scale_ = false;
  UpdateInputs inputs_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_
