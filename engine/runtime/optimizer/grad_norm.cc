// The norm of all gradients.
#include "engine/runtime/optimizer/grad_norm.h"

#include <vector>

#include "engine/backend/optimizer_kernels.h"
#include "engine/backend/stream.h"
#include "engine/runtime/state/redistribute.h"

namespace dsat::engine {

GradNorm::GradNorm(const Plan& plan, UnitStates& states, ProcessGroup* group)
    : plan_(plan),
      states_(states),
      group_(group != nullptr && group->size() > 1 ? group : nullptr),
      num_rows_(plan.optimizer_home == Placement::kShard ? 1 : plan.world_size) {
  const Memory& memory = states.memory();
  if (group_ == nullptr) {
    own_ = memory.device.Allocate(RowBytes(), "squares of gradients");
    memory.kernels.Run(op::Fill{own_.AsTensor(DType::kF32), 0});  // Not all units are summed.
    return;
  }
  const int64_t bytes = group_->size() * RowBytes();
  charge_ = ChargeBuckets(memory.device, bytes);
  bucket_ = group_->Allocate(bytes);
}

bool GradNorm::Sum(Tier tier, double* squares) const {
  Kernels& kernels = states_.memory().kernels_of(tier);
  bool sums_any = false;
  for (int64_t row = 0; row < num_rows_; ++row) {
    for (int u = 0; u < states_.num_units(); ++u) {
      const UnitPlan& unit = plan_.units[u];
      if (!unit.trained || !unit.counted || unit.reduced_grad_tier() != tier) continue;
      const int64_t slice_elems = states_.SliceElems(u);
      double* sum = squares == nullptr ? nullptr : squares + row * states_.num_units() + u;
      kernels.Run(
          op::SumOfSquares{sum, states_.ReducedGrad(u).Slice(row * slice_elems, slice_elems)});
      sums_any = true;
    }
  }
  return sums_any;
}

void GradNorm::Find(StepScale* scale, const ClipSettings& settings) {
  Kernels& kernels = states_.memory().kernels;
  const int64_t row_elems = RowBytes() / int64_t{sizeof(double)};
  auto* const all = static_cast<double*>(group_ == nullptr ? own_.data() : bucket_.data);
  double* const own = group_ == nullptr || all == nullptr ? all : all + group_->rank() * row_elems;
  std::vector<double> on_host(static_cast<size_t>(row_elems));
  if (Sum(Tier::kHost, on_host.data()))
    kernels.stream().UploadLater(own, on_host.data(), RowBytes());
  Sum(Tier::kDevice, own);
  if (group_ != nullptr) group_->GatherScalars(bucket_, RowBytes());
  const int num_ranks = group_ == nullptr ? 1 : group_->size();
  kernels.Run(op::FindStepScale{scale, all, num_ranks * num_rows_, states_.num_units(), settings});
}

}  // namespace dsat::engine
