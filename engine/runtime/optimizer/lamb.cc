// LAMB over flat units that may be sharded through the middle of a parameter.
#include "engine/runtime/optimizer/lamb.h"

#include <algorithm>
#include <cmath>

#include "engine/backend/stream.h"
#include "engine/runtime/optimizer/optimizer.h"

namespace dsat::engine {
namespace {

// The row of the plan's all-reduce; 0 if the plan has none.
int64_t RowElems(const Plan& plan) {
  for (const Instruction& instruction : plan.instructions) {
    if (instruction.op != Op::kTrustRatios) continue;
    const std::vector<CollectiveCall> calls = CallsOf(plan, instruction);
    if (!calls.empty()) return calls[0].row_elems;
  }
  return 0;
}

}  // namespace

float TrustRatio(float param_squares, float direction_squares, const OptimizerConfig& config) {
  if (param_squares == 0 || direction_squares == 0) return 1;
  const double ratio = std::sqrt(double{param_squares}) / std::sqrt(double{direction_squares});
  return static_cast<float>(std::clamp(ratio, config.min_coeff, config.max_coeff));
}

Lamb::Lamb(const Plan& plan, const UnitStates& states, const std::vector<ParamPieces>& pieces,
           ProcessGroup& group)
    : plan_(plan),
      states_(states),
      group_(group),
      pieces_(pieces),
      ratios_(static_cast<size_t>(plan.num_trust_ratios)),
      row_elems_(RowElems(plan)),
      charge_(states.memory().device, BucketBytes()) {
  for (const SubGroup& sub_group : plan.sub_groups)
    DSAT_CHECK(!sub_group.on_disk, "unit {}", sub_group.unit);
  if (row_elems_ > 0) bucket_ = group.Allocate(BucketBytes());
}

void Lamb::Prepare(const OptimizerConfig& config, int64_t step, const StepScales& scales) {
  const bool shard = plan_.optimizer_home == Placement::kShard;
  const int num_rows = shard ? 1 : plan_.world_size;
  std::vector<LambSums> rows(ratios_.size() * static_cast<size_t>(num_rows));
  for (int g = 0; g < std::ssize(plan_.sub_groups); ++g) {
    const SubGroup& sub_group = plan_.sub_groups[g];
    const Tier tier = plan_.units[sub_group.unit].reduced_grad_tier();
    Kernels& kernels = states_.memory().kernels_of(tier);
    OptimizerView view = states_.Optimizer(sub_group, g);
    view.param = view.master;  // Not written, and not always here.
    for (const ParamPiece& piece : pieces_[g]) {
      const OptimizerView part = view.Slice(piece.begin, piece.num_elems);
      const LambSums sums = kernels.Run(
          op::LambMoments{MakeAdamArgs(SettingsOf(config, piece), part, step, scales.of(tier))});
      LambSums& row = rows[static_cast<size_t>(piece.param * num_rows + piece.row)];
      row.param += sums.param;
      row.direction += sums.direction;
    }
  }
  sums_.assign(2 * ratios_.size(), 0.0F);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t param = i / static_cast<size_t>(num_rows);
    sums_[2 * param] += static_cast<float>(rows[i].param);
    sums_[2 * param + 1] += static_cast<float>(rows[i].direction);
  }
  if (row_elems_ > 0) SumOverRanks();
  for (size_t i = 0; i < ratios_.size(); ++i)
    ratios_[i] = TrustRatio(sums_[2 * i], sums_[2 * i + 1], config);
}

// In f32 and in the order of ranks, as Prepare adds up what rests on one.
void Lamb::SumOverRanks() {
  Kernels& kernels = states_.memory().kernels;
  const auto bytes = static_cast<int64_t>(sums_.size() * sizeof(float));
  kernels.stream().Upload(bucket_.data, sums_.data(), bytes);
  group_.AllReduce(bucket_, DType::kF32, row_elems_);
  kernels.stream().Download(sums_.data(), bucket_.data, bytes);
}

void Lamb::Apply(Kernels& kernels, const OptimizerConfig& config, int sub_group,
                 const OptimizerView& view, int64_t step) const {
  for (const ParamPiece& piece : pieces_[sub_group]) {
    const OptimizerView part = view.Slice(piece.begin, piece.num_elems);
    kernels.Run(op::LambApply{MakeAdamArgs(SettingsOf(config, piece), part, step, nullptr),
                              ratios_[static_cast<size_t>(piece.param)]});
  }
}

}  // namespace dsat::engine
