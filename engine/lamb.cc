// LAMB over flat units that may be sharded through the middle of a parameter.
#include "engine/lamb.h"

#include <algorithm>
#include <cmath>

#include "engine/optimizer.h"

namespace dsat::engine {
namespace {

int64_t NumParams(const Model& model) {
  int64_t count = 0;
  for (const auto& layer : model.layers)
    count += static_cast<int64_t>(layer->params().size());
  return count;
}

// Numbers that every rank gives to the all-reduce, divided into one row per rank; 0: there is none.
int64_t RowElems(const Model& model, const Plan& plan) {
  if (plan.world_size == 1 || plan.optimizer_home != Placement::kShard) return 0;
  return (2 * NumParams(model) + plan.world_size - 1) / plan.world_size;
}

int64_t BucketBytes(const Model& model, const Plan& plan) {
  return plan.world_size * RowElems(model, plan) * BytesPerElem(DType::kF32);
}

}  // namespace

float TrustRatio(float param_squares, float direction_squares, const OptimizerConfig& config) {
  if (param_squares == 0 || direction_squares == 0) return 1;
  const double ratio = std::sqrt(double{param_squares}) / std::sqrt(double{direction_squares});
  return static_cast<float>(std::clamp(ratio, config.min_coeff, config.max_coeff));
}

Lamb::Lamb(const Model& model, const Plan& plan, const UnitStates& states, ProcessGroup& group)
    : model_(model),
      states_(states),
      group_(group),
      kernels_(states.memory().kernels),
      ratios_(static_cast<size_t>(NumParams(model))),
      charge_(states.memory().device, BucketBytes(model, plan)),
      row_elems_(RowElems(model, plan)) {
  int64_t first_param = 0;
  for (int u = 0; u < states.num_units(); ++u) {
    pieces_.push_back(PiecesOf(u, first_param));
    first_param += static_cast<int64_t>(model.layers[u]->params().size());
  }
  if (row_elems_ > 0) bucket_ = group.Allocate(BucketBytes(model, plan));
}

std::vector<Lamb::Piece> Lamb::PiecesOf(int unit, int64_t first_param) const {
  std::vector<Piece> pieces;
  const int64_t slice = states_.SliceElems(unit);
  const SubGroup home = states_.OptimizerHome(unit);
  const int64_t home_begin = states_.OptimizerBegin(unit);
  const int64_t home_end = home_begin + home.num_elems;
  const auto& specs = model_.layers[unit]->params();
  // Cut where ranks' slices meet even if they all rest here: sums are formed in the same order.
  for (int64_t begin = home_begin; begin < home_end; begin += slice) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const int64_t param_begin = states_.unit(unit).layout.offsets[i];
      const int64_t from = std::max(begin, param_begin);
      const int64_t to = std::min(begin + slice, param_begin + specs[i].NumElems());
      if (from >= to) continue;
      pieces.push_back({first_param + static_cast<int64_t>(i), from - home_begin, to - from});
    }
  }
  return pieces;
}

OptimizerView Lamb::View(int unit, const Piece& piece) const {
  OptimizerView view = states_.Optimizer(states_.OptimizerHome(unit), -1);
  for (Tensor* t : {&view.param, &view.master, &view.grad})
    *t = t->Slice(piece.begin, piece.num_elems);
  for (Tensor& moment : view.moments)
    moment = moment.Slice(piece.begin, piece.num_elems);
  return view;
}

void Lamb::Prepare(const OptimizerConfig& config, int64_t step, float grad_scale) {
  sums_.assign(2 * ratios_.size(), 0.0F);
  for (int u = 0; u < states_.num_units(); ++u) {
    for (const Piece& piece : pieces_[u]) {
      const LambSums sums =
          kernels_.LambMoments(MakeAdamArgs(config, View(u, piece), step, grad_scale));
      float* of_param = &sums_[static_cast<size_t>(2 * piece.param)];
      of_param[0] += static_cast<float>(sums.param);
      of_param[1] += static_cast<float>(sums.direction);
    }
  }
  if (row_elems_ > 0) SumOverRanks();
  for (size_t i = 0; i < ratios_.size(); ++i)
    ratios_[i] = TrustRatio(sums_[2 * i], sums_[2 * i + 1], config);
}

// In f32 and in the order of ranks, as Prepare adds up what rests on one.
void Lamb::SumOverRanks() {
  auto* bucket = static_cast<float*>(bucket_.data);
  if (bucket != nullptr) std::copy(sums_.begin(), sums_.end(), bucket);
  group_.AllReduce(bucket_, DType::kF32, row_elems_);
  if (bucket != nullptr) std::copy_n(bucket, sums_.size(), sums_.begin());
}

void Lamb::Update(const OptimizerConfig& config, int unit, int64_t step) {
  for (const Piece& piece : pieces_[unit]) {
    kernels_.LambApply(MakeAdamArgs(config, View(unit, piece), step, 1),
                       ratios_[static_cast<size_t>(piece.param)]);
  }
}

}  // namespace dsat::engine
