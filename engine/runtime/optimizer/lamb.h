// LAMB over flat units that may be sharded through the middle of a parameter.
//
// Every parameter's step is scaled by its trust ratio, |parameter| / |direction|, both norms over
// the whole parameter (You et al. 2020; the range of the ratio is DeepSpeed's FusedLamb's). So the
// update has two halves: the moments and every rank's sums of squares; then, with the sums of all
// ranks, the step. One all-reduce, which the plan lists, carries the sums of all parameters.
#ifndef DSAT_ENGINE_RUNTIME_OPTIMIZER_LAMB_H_
#define DSAT_ENGINE_RUNTIME_OPTIMIZER_LAMB_H_

#include <cstdint>
#include <vector>

#include "engine/backend/optimizer_kernels.h"
#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/plan/plan.h"
#include "engine/runtime/optimizer/grad_norm.h"
#include "engine/runtime/optimizer/param_pieces.h"
#include "engine/runtime/state/redistribute.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

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
  // collective call.
  // `config.lr` and `step` (1 at the first) are those of this update. REQUIRES: every reduced
  // gradient is at the optimizer's home.
  void Prepare(const OptimizerConfig& config, int64_t step, const StepScales& scales);
  // Updates one sub-group; `view` is all of it. REQUIRES: Prepare was called with the same `config`
  // and `step`.
  void Apply(Kernels& kernels, const OptimizerConfig& config, int sub_group,
             const OptimizerView& view, int64_t step) const;

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
  BucketCharge charge_;
  CommBuffer bucket_;
};

// |parameter| / |direction| from the sums of squares, in [min_coeff, max_coeff]; 1 if either is 0.
float TrustRatio(float param_squares, float direction_squares, const OptimizerConfig& config);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_OPTIMIZER_LAMB_H_
