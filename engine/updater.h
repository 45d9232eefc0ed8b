// The optimizer's side of a step: norms and updates of sub-groups on the tier where their state
// rests, and the updated parameters' way back to where those rest (ZeRO-Offload, Ren et al. 2021).
#ifndef DSAT_ENGINE_UPDATER_H_
#define DSAT_ENGINE_UPDATER_H_

#include <cstdint>

#include "engine/config/ds_config.h"
#include "engine/lamb.h"
#include "engine/unit_state.h"

namespace dsat::engine {

struct UpdateInputs {
  const OptimizerConfig& config;  // With the learning rate and betas of this step.
  int64_t step = 1;               // The optimizer's count, 1 at the first.
  float grad_scale = 1;
};

class Updater {
 public:
  // All arguments must outlive this. `lamb` is nullptr if the optimizer is another.
  Updater(const Plan& plan, UnitStates& states, Lamb* lamb)
      : plan_(plan), states_(states), lamb_(lamb) {}

  // Sum of squares of the gradients over the optimizer's home, slice by slice in the order of the
  // ranks: every placement gives the same bits. Of a unit that several pipeline stages hold, one
  // copy counts.
  double SumOfSquares() const;
  // What an optimizer needs of all sub-groups before it updates the first. A collective call.
  void Prepare(const UpdateInputs& inputs);
  // Updates one sub-group. REQUIRES: its state is in memory.
  void Update(int sub_group, const UpdateInputs& inputs);

 private:
  Tensor Target(const SubGroup& group);
  void Step(Kernels& kernels, int sub_group, const OptimizerView& view, const UpdateInputs& inputs);

  const Plan& plan_;
  UnitStates& states_;
  Lamb* lamb_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_UPDATER_H_
