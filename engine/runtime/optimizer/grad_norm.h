// The norm of all gradients, and the factor of updates that follows from it, in device memory.
#pragma once

#include <cstdint>

#include "engine/backend/step_scale.h"
#include "engine/comm/process_group.h"
#include "engine/core/arena.h"
#include "engine/plan/plan.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// A step's factor, for kernels of the device and of the host.
struct StepScales {
  const StepScale* device = nullptr;
  const StepScale* host = nullptr;
  const StepScale* of(Tier tier) const { return tier == Tier::kDevice ? device : host; }
};

class GradNorm {
 public:
  // Allocates a number for each unit and slice. A collective call of `group`, whose ranks' sums of
  // squares are added up; nullptr: every rank has the whole gradient. All arguments must outlive
  // this. Throws OutOfMemory.
  GradNorm(const Plan& plan, UnitStates& states, ProcessGroup* group);

  // *scale, in device memory, from the gradients at the optimizer's home. Squares are added slice
  // by slice in the order of the ranks: every placement gives the same bits. If several pipeline
  // stages hold a copy of a unit, one copy counts. Does not wait for the device. A collective call.
  void Find(StepScale* scale, const ClipSettings& settings);

 private:
  int64_t RowBytes() const { return num_rows_ * states_.num_units() * int64_t{sizeof(double)}; }
  // squares (num_rows_, units) of the units whose gradients rest on `tier`; false if there are
  // none.
  bool Sum(Tier tier, double* squares) const;

  const Plan& plan_;
  UnitStates& states_;
  ProcessGroup* const group_;  // nullptr: this rank alone.
  const int64_t num_rows_;     // The slices on this rank.
  Buffer own_;                 // Squares (num_rows_, units) f64, used without a group.
  Buffer charge_;
  CommBuffer bucket_;  // The squares of each rank, used with a group.
};

}  // namespace dsat::engine
