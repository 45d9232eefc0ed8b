// The optimizer in a step: norms and updates of sub-groups on the tier of their state, and the copy
// of the updated parameters to the tier of the parameters (ZeRO-Offload, Ren et al. 2021).
#ifndef DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_
#define DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/runtime/optimizer/lamb.h"
#include "engine/runtime/optimizer/one_bit_adam.h"
#include "engine/runtime/optimizer/param_pieces.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

struct UpdateInputs {
  OptimizerConfig optimizer;  // With the learning rate and betas of this step.
  int64_t step = 1;           // The optimizer's count, 1 at the first.
  float grad_scale = 1;
};

class Updater {
 public:
  // A collective call over the data-parallel group. All arguments must outlive this. Throws
  // OutOfMemory.
  Updater(const Model& model, const Plan& plan, UnitStates& states, ProcessGroup& group);

  // Sum of squares of the gradients over the optimizer's home, slice by slice in the order of the
  // ranks: every placement gives the same bits. If several pipeline stages hold a copy of a unit,
  // one copy counts.
  double SumOfSquares() const;
  // What the updates of this step have in common.
  void Begin(const UpdateInputs& inputs) { inputs_ = inputs; }
  // Run the instructions of these names. Collective calls.
  void TrustRatios();
  void AverageMomentum(int sub_group);
  // Updates one sub-group. REQUIRES: its state is in memory.
  void Update(int sub_group);

 private:
  void Step(Kernels& kernels, int sub_group, const OptimizerView& view);
  void StepElems(Kernels& kernels, const OptimizerConfig& optimizer, const OptimizerView& view);
  Tensor Target(const SubGroup& group);

  const Plan& plan_;
  UnitStates& states_;
  std::vector<std::vector<ParamPiece>> pieces_;  // Per sub-group.
  std::optional<Lamb> lamb_;                // If it is the optimizer.
  std::optional<OneBitAdam> one_bit_adam_;  // If the plan leaves gradients unreduced.
  UpdateInputs inputs_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_OPTIMIZER_UPDATER_H_
