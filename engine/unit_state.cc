// The model state of every unit on this rank.
#include "engine/unit_state.h"

#include <algorithm>

#include "engine/init.h"

namespace dsat::engine {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

UnitLayout LayoutOf(const Layer& layer, int world_size) {
  UnitLayout layout;
  for (const ParamSpec& spec : layer.params()) {
    layout.offsets.push_back(layout.num_elems);
    layout.num_elems += RoundUp(spec.NumElems(), kAlignElems);
  }
  layout.num_elems = RoundUp(layout.num_elems, world_size * kAlignElems);
  return layout;
}

std::vector<PlanUnit> PlanUnitsOf(const Model& model, int world_size) {
  std::vector<PlanUnit> units;
  for (const auto& layer : model.layers) {
    PlanUnit unit;
    unit.num_elems = LayoutOf(*layer, world_size).num_elems;
    for (const ParamSpec& spec : layer->params()) {
      unit.largest_param = std::max(unit.largest_param, spec.NumElems());
    }
    for (const TiedParam& tied : layer->tied())
      unit.borrows.push_back(tied.layer);
    std::ranges::sort(unit.borrows);
    const auto repeated = std::ranges::unique(unit.borrows);
    unit.borrows.erase(repeated.begin(), repeated.end());
    units.push_back(std::move(unit));
  }
  return units;
}

UnitStates::UnitStates(const Model& model, const Plan& plan, DType dtype, int rank, int num_moments,
                       uint64_t seed, Arena& arena, Kernels& kernels)
    : model_(model),
      param_homes_(plan.param_homes),
      optimizer_home_(plan.optimizer_home),
      dtype_(dtype),
      rank_(rank),
      world_size_(plan.world_size),
      arena_(arena),
      kernels_(kernels) {
  for (int u = 0; u < static_cast<int>(model.layers.size()); ++u) {
    units_.emplace_back().layout = LayoutOf(*model.layers[u], world_size_);
    if (units_[u].layout.num_elems == 0) continue;
    AllocateUnit(u, num_moments);
    InitUnit(u, seed);
  }
}

int64_t UnitStates::HomeElems(Placement home, int u) const {
  return home == Placement::kShard ? SliceElems(u) : units_[u].layout.num_elems;
}

void UnitStates::AllocateUnit(int u, int num_moments) {
  Unit& unit = units_[u];
  const int64_t optimizer_elems = HomeElems(optimizer_home_, u);
  unit.param = arena_.Allocate(dtype_, HomeElems(param_homes_[u], u), "parameters");
  if (dtype_ != DType::kF32) {
    unit.master = arena_.Allocate(DType::kF32, optimizer_elems, "master parameters");
  }
  for (int i = 0; i < num_moments; ++i) {
    unit.moments.push_back(arena_.Allocate(DType::kF32, optimizer_elems, "optimizer state"));
  }
}

// Writes the part of the unit that rests here; its optimizer state starts from that.
void UnitStates::InitUnit(int u, uint64_t seed) {
  const Tensor home = ParamAtHome(u);
  const int64_t home_begin = ParamBegin(u);
  const int64_t home_end = home_begin + home.num_elems;
  kernels_.Fill(home, 0);
  const auto& specs = model_.layers[u]->params();
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t param_begin = units_[u].layout.offsets[i];
    const int64_t begin = std::max(param_begin, home_begin);
    const int64_t end = std::min(param_begin + specs[i].NumElems(), home_end);
    if (begin >= end) continue;
    InitParam(kernels_, specs[i], seed, begin - param_begin,
              home.Slice(begin - home_begin, end - begin));
  }
  const OptimizerView view = Optimizer(u);
  if (dtype_ != DType::kF32) kernels_.Cast(view.master, view.param);
  for (const Tensor& moment : view.moments)
    kernels_.Fill(moment, 0);
}

Tensor UnitStates::Param(int u) const {
  const Unit& unit = units_[u];
  const Buffer& whole = param_homes_[u] == Placement::kShard ? unit.gathered : unit.param;
  return whole.AsTensor(dtype_).Slice(0, unit.layout.num_elems);
}

Tensor UnitStates::ParamSlice(int u) const {
  return ParamAtHome(u).Slice(rank_ * SliceElems(u) - ParamBegin(u), SliceElems(u));
}

Tensor UnitStates::ParamAtHome(int u) const {
  return units_[u].param.AsTensor(dtype_).Slice(0, HomeElems(param_homes_[u], u));
}

Tensor UnitStates::GatherTarget(int u) {
  Unit& unit = units_[u];
  if (param_homes_[u] == Placement::kShard && !unit.gathered) {
    unit.gathered = arena_.Allocate(dtype_, unit.layout.num_elems, "gathered parameters");
  }
  return Param(u);
}

Tensor UnitStates::Grad(int u) {
  Unit& unit = units_[u];
  const bool fresh = !unit.grad;
  if (fresh) unit.grad = arena_.Allocate(dtype_, unit.layout.num_elems, "gradients");
  const Tensor grad = unit.grad.AsTensor(dtype_).Slice(0, unit.layout.num_elems);
  if (fresh) kernels_.Fill(grad, 0);
  return grad;
}

Tensor UnitStates::GradSlice(int u) {
  Unit& unit = units_[u];
  if (!unit.grad_slice) {
    unit.grad_slice = arena_.Allocate(dtype_, SliceElems(u), "gradient slices");
  }
  return unit.grad_slice.AsTensor(dtype_).Slice(0, SliceElems(u));
}

OptimizerView UnitStates::Optimizer(int u) const {
  const Unit& unit = units_[u];
  const int64_t num_elems = HomeElems(optimizer_home_, u);
  const bool shard = optimizer_home_ == Placement::kShard;
  OptimizerView view;
  view.param = shard ? ParamSlice(u) : Param(u);
  view.master = unit.master ? unit.master.AsTensor(DType::kF32).Slice(0, num_elems) : view.param;
  const Buffer& grad = shard ? unit.grad_slice : unit.grad;
  if (grad) view.grad = grad.AsTensor(dtype_).Slice(0, num_elems);
  for (const Buffer& moment : unit.moments) {
    view.moments.push_back(moment.AsTensor(DType::kF32).Slice(0, num_elems));
  }
  return view;
}

void UnitStates::FreeGrads(int u) {
  units_[u].grad.Free();
  units_[u].grad_slice.Free();
}

template <typename WholeOf>
std::vector<Tensor> UnitStates::Views(int u, WholeOf whole_of) const {
  std::vector<Tensor> views;
  const auto add = [&](int layer, size_t param, const Tensor& whole) {
    const int64_t num_elems = model_.layers[layer]->params()[param].NumElems();
    views.push_back(whole.Slice(units_[layer].layout.offsets[param], num_elems));
  };
  const size_t num_params = model_.layers[u]->params().size();
  for (size_t i = 0; i < num_params; ++i)
    add(u, i, whole_of(u));
  for (const TiedParam& tied : model_.layers[u]->tied()) {
    add(tied.layer, static_cast<size_t>(tied.param), whole_of(tied.layer));
  }
  return views;
}

std::vector<Tensor> UnitStates::LayerParams(int u) const {
  return Views(u, [this](int unit) { return Param(unit); });
}

std::vector<Tensor> UnitStates::LayerGrads(int u) {
  return Views(u, [this](int unit) { return Grad(unit); });
}

}  // namespace dsat::engine
