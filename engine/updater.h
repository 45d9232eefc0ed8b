// The optimizer's side of a step: norms and updates of sub-groups on the tier where their state
// rests, and the updated parameters' way back to where those rest (ZeRO-Offload, Ren et al. 2021).
#ifndef DSAT_ENGINE_UPDATER_H_
#define DSAT_ENGINE_UPDATER_H_

#include <cstdint>

#include "engine/config/ds_config.h"
#include "engine/unit_state.h"

namespace dsat::engine {

struct UpdateInputs {
  float lr = 0;
  int64_t step = 1;  // The optimizer's count, 1 at the first.
  float grad_scale = 1;
};

class Updater {
 public:
  // All arguments must outlive this.
  Updater(const Plan& plan, const OptimizerConfig& config, UnitStates& states)
      : plan_(plan), config_(config), states_(states) {}

  // Sum of squares of the gradients over the optimizer's home, slice by slice in the order of the
  // ranks: every placement gives the same bits. Of a unit that several pipeline stages hold, one
  // copy counts.
  double SumOfSquares() const;
  // Updates one sub-group. REQUIRES: its state is in memory.
  void Update(int sub_group, const UpdateInputs& inputs);

 private:
  Tensor Target(const SubGroup& group);

  const Plan& plan_;
  const OptimizerConfig& config_;
  UnitStates& states_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_UPDATER_H_
