// The model state of every unit on this rank.
#include "engine/runtime/state/unit_state.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "engine/backend/stream.h"
#include "engine/runtime/state/init.h"

namespace dsat::engine {
namespace {

// The bytes of device memory that are shown at a time.
constexpr int64_t kShownBytes = int64_t{1} << 20;

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

UnitLayout LayoutOf(const Layer& layer, int world_size) {
  UnitLayout layout;
  for (const ParamSpec& spec : layer.params()) {
    layout.offsets.push_back(layout.num_elems);
    layout.num_elems += RoundUp(spec.StoredElems(), kAlignElems);
  }
  layout.num_elems = RoundUp(layout.num_elems, world_size * kAlignElems);
  return layout;
}

std::vector<PlanUnit> PlanUnitsOf(const Model& model, int world_size) {
  std::vector<PlanUnit> units;
  for (size_t u = 0; u < model.layers.size(); ++u) {
    const Layer& layer = *model.layers[u];
    PlanUnit unit;
    unit.num_elems = LayoutOf(layer, world_size).num_elems;
    unit.frozen = model.IsFrozen(u);
    for (const ParamSpec& spec : layer.params()) {
      unit.largest_param = std::max(unit.largest_param, spec.NumElems());
    }
    for (const TiedParam& tied : layer.tied())
      unit.borrows.push_back(tied.layer);
    std::ranges::sort(unit.borrows);
    const auto repeated = std::ranges::unique(unit.borrows);
    unit.borrows.erase(repeated.begin(), repeated.end());
    units.push_back(std::move(unit));
  }
  return units;
}

UnitStates::UnitStates(const Model& model, const Plan& plan, const StateOptions& options, int rank,
                       const Memory& memory)
    : model_(model),
      plan_(plan),
      options_(options),
      rank_(rank),
      memory_(memory),
      units_(model.layers.size()) {
  for (int u = 0; u < num_units(); ++u) {
    if (plan.units[u].present) units_[u].layout = LayoutOf(*model.layers[u], plan.world_size);
  }
  MakeSwapFiles();
  for (int u = 0; u < num_units(); ++u) {
    if (units_[u].layout.num_elems == 0) continue;
    units_[u].moments.resize(static_cast<size_t>(options.num_moments));
    for (const StateInMemory& state : StatesInMemory(u)) {
      *state.buffer = memory.arena(state.home.tier)
                          .Allocate(state.dtype, HomeElems(state.home.placement, u), state.use);
    }
    InitUnit(u);
  }
}

void UnitStates::MakeSwapFiles() {
  int64_t elem_bytes = 0;
  for (const DType dtype : SwappedTypes())
    elem_bytes += BytesPerElem(dtype);
  std::vector<int64_t> state_bytes;
  for (const SubGroup& group : plan_.sub_groups)
    state_bytes.push_back(group.on_disk ? elem_bytes * group.num_elems : 0);
  std::vector<int64_t> slice_bytes;
  for (int u = 0; u < num_units(); ++u) {
    slice_bytes.push_back(OnDisk(u) ? SliceElems(u) * BytesPerElem(options_.dtype) : 0);
  }
  const auto some = [](int64_t bytes) { return bytes > 0; };
  if (std::ranges::any_of(state_bytes, some)) {
    state_swap_.emplace(options_.optimizer_swap, state_bytes, memory_.host);
  }
  if (std::ranges::any_of(slice_bytes, some)) {
    slice_swap_.emplace(options_.param_swap, slice_bytes, memory_.host);
  }
}

std::vector<DType> UnitStates::SwappedTypes() const {
  std::vector<DType> types(static_cast<size_t>(options_.num_moments), options_.moment_dtype);
  types.push_back(options_.master_dtype);
  return types;
}

std::vector<Tensor> UnitStates::Swapped(int sub_group) const {
  const int64_t num_elems = plan_.sub_groups[sub_group].num_elems;
  std::vector<Tensor> tensors;
  int64_t begin = 0;  // In bytes.
  for (const DType dtype : SwappedTypes()) {
    const Tensor region = state_swap_->Get(sub_group, dtype);
    tensors.push_back(region.Slice(begin / BytesPerElem(dtype), num_elems));
    begin += tensors.back().bytes();
  }
  return tensors;
}

int64_t UnitStates::HomeElems(Placement home, int u) const {
  return home == Placement::kShard ? SliceElems(u) : units_[u].layout.num_elems;
}

std::vector<UnitStates::StateInMemory> UnitStates::StatesInMemory(int u) {
  Unit& unit = units_[u];
  const UnitPlan& plan = plan_.units[u];
  std::vector<StateInMemory> states;
  if (!OnDisk(u)) states.push_back({"param", &unit.param, dtype(), plan.param, "parameters"});
  if (!plan.trained || plan.optimizer_tier == Tier::kNvme) return states;
  const Home home = {plan_.optimizer_home, plan.optimizer_tier};
  if (options_.dtype != options_.master_dtype || plan.optimizer_tier != plan.param.tier)
    states.push_back({"master", &unit.master, options_.master_dtype, home, "master parameters"});
  for (size_t i = 0; i < unit.moments.size(); ++i) {
    states.push_back({fmt::format("moment{}", i), &unit.moments[i], options_.moment_dtype, home,
                      "optimizer state"});
  }
  return states;
}

// Writes the part of the unit that rests here. Every number is a function of its place in the
// model, and is drawn once for the parameter and its master copy, unless one rests on disk.
void UnitStates::InitUnit(int u) {
  const bool any_on_disk =
      OnDisk(u) || (plan_.units[u].trained && plan_.units[u].optimizer_tier == Tier::kNvme);
  if (any_on_disk) {
    return Visit(u, Access::kWrite, [&](const StatePart& part) {
      memory_.host_kernels.Run(op::Fill{part.data, 0});
      if (!part.state.starts_with("moment")) InitParams(u, {{part.begin, part.data, Tier::kHost}});
    });
  }
  std::vector<RestingPart> parts;
  for (const StateInMemory& state : StatesInMemory(u)) {
    const Tensor data = state.buffer->AsTensor(state.dtype);
    memory_.kernels_of(state.home.tier).Run(op::Fill{data, 0});
    if (!state.name.starts_with("moment"))
      parts.push_back({BeginOf(state.home.placement, u), data, state.home.tier});
  }
  InitParams(u, parts);
}

// Writes all parts; the first covers the others.
void UnitStates::InitParams(int u, const std::vector<RestingPart>& parts) {
  const RestingPart& all = parts.front();
  if (all.data.data == nullptr) return;  // The counting backend has no values.
  const int64_t end = all.begin + all.data.num_elems;
  std::vector<float> room(static_cast<size_t>(std::min(all.data.num_elems, kStartElems)));
  const auto& specs = model_.layers[u]->params();
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t param_begin = units_[u].layout.offsets[i];
    const int64_t to = std::min(param_begin + specs[i].NumElems(), end);
    for (int64_t at = std::max(param_begin, all.begin); at < to; at += kStartElems) {
      const Tensor values = {room.data(), std::min(kStartElems, to - at), DType::kF32};
      if (model_.weights == nullptr) {
        StartValues(specs[i], options_.seed, at - param_begin,
                    std::span(room).first(static_cast<size_t>(values.num_elems)));
      } else {
        model_.weights->Read(memory_.host_kernels, specs[i].name, at - param_begin, values);
      }
      for (const RestingPart& part : parts)
        Put(part, at, values);
    }
  }
}

// Writes those of the unit's elements [begin, begin + values.num_elems) that the part has.
void UnitStates::Put(const RestingPart& part, int64_t begin, Tensor values) {
  const int64_t from = std::max(begin, part.begin);
  const int64_t to = std::min(begin + values.num_elems, part.begin + part.data.num_elems);
  if (from >= to) return;
  const Tensor dst = part.data.Slice(from - part.begin, to - from);
  const Tensor src = values.Slice(from - begin, to - from);
  if (memory_.arena(part.tier).host_visible()) return memory_.host_kernels.Run(op::Cast{dst, src});
  std::vector<std::byte> converted(static_cast<size_t>(dst.bytes()));
  memory_.host_kernels.Run(op::Cast{{converted.data(), dst.num_elems, dst.dtype}, src});
  memory_.kernels.stream().Upload(dst.data, converted.data(), dst.bytes());
}

void UnitStates::Visit(int u, Access access, const Visitor& visitor) {
  if (units_[u].layout.num_elems == 0) return;
  if (OnDisk(u)) VisitSlice(u, access, visitor);
  for (const StateInMemory& state : StatesInMemory(u)) {
    Show({state.name, BeginOf(state.home.placement, u), state.buffer->AsTensor(state.dtype)},
         state.home.tier, access, visitor);
  }
  if (plan_.units[u].trained && plan_.units[u].optimizer_tier == Tier::kNvme)
    VisitSwapped(u, access, visitor);
}

void UnitStates::Show(const StatePart& part, Tier tier, Access access, const Visitor& visitor) {
  const Tensor& all = part.data;
  const bool in_place = all.data == nullptr || memory_.arena(tier).host_visible();
  if (access == Access::kShape || in_place) return visitor(part);
  const int64_t part_elems = std::min(all.num_elems, kShownBytes / BytesPerElem(all.dtype));
  const Buffer room = memory_.host.Allocate(all.dtype, part_elems, "state on its way");
  for (int64_t begin = 0; begin < all.num_elems; begin += part_elems) {
    const int64_t count = std::min(part_elems, all.num_elems - begin);
    const Tensor resting = all.Slice(begin, count);
    const Tensor shown = room.AsTensor(all.dtype).Slice(0, count);
    memory_.kernels.stream().Download(shown.data, resting.data, resting.bytes());
    visitor({part.state, part.begin + begin, shown});
    if (access == Access::kWrite)
      memory_.kernels.stream().Upload(resting.data, shown.data, resting.bytes());
  }
}

void UnitStates::VisitSlice(int u, Access access, const Visitor& visitor) {
  const int64_t begin = BeginOf(Placement::kShard, u);
  if (access == Access::kShape) return visitor({"param", begin, {nullptr, SliceElems(u), dtype()}});
  slice_swap_->Read(u);
  slice_swap_->Await(u);
  visitor({"param", begin, ParamSlice(u)});
  if (access == Access::kRead) return slice_swap_->Free(u);
  slice_swap_->Write(u);
  slice_swap_->Await(u);
}

// Sub-groups are put together: a visitor sees a unit's state whole, wherever it rests.
void UnitStates::VisitSwapped(int u, Access access, const Visitor& visitor) {
  const int64_t num_elems = HomeElems(plan_.optimizer_home, u);
  std::vector<Buffer> buffers;
  std::vector<Tensor> tensors;
  for (const DType dtype : SwappedTypes()) {
    if (access == Access::kShape) {
      tensors.push_back({nullptr, num_elems, dtype});
      continue;
    }
    buffers.push_back(memory_.host.Allocate(dtype, num_elems, "swap buffers"));
    tensors.push_back(buffers.back().AsTensor(dtype));
  }
  if (access != Access::kShape) MoveSwapped(u, Access::kRead, tensors);
  const int64_t begin = BeginOf(plan_.optimizer_home, u);
  visitor({"master", begin, tensors.back()});
  for (int i = 0; i < options_.num_moments; ++i)
    visitor({fmt::format("moment{}", i), begin, tensors[static_cast<size_t>(i)]});
  if (access == Access::kWrite) MoveSwapped(u, Access::kWrite, tensors);
}

// From disk to `tensors`, or back.
void UnitStates::MoveSwapped(int u, Access access, const std::vector<Tensor>& tensors) {
  for (int g = 0; g < static_cast<int>(plan_.sub_groups.size()); ++g) {
    const SubGroup& group = plan_.sub_groups[g];
    if (group.unit != u) continue;
    const bool read = access == Access::kRead;
    read ? state_swap_->Read(g) : state_swap_->Create(g);
    if (read) state_swap_->Await(g);
    const std::vector<Tensor> swapped = Swapped(g);
    for (size_t i = 0; i < swapped.size(); ++i) {
      const Tensor part = tensors[i].Slice(group.offset, group.num_elems);
      memory_.host_kernels.Run(op::Cast{read ? part : swapped[i], read ? swapped[i] : part});
    }
    if (read) {
      state_swap_->Free(g);
    } else {
      state_swap_->Write(g);
      state_swap_->Await(g);
    }
  }
}

Tensor UnitStates::Param(int u) const {
  const Unit& unit = units_[u];
  return (IsSharded(u) ? unit.gathered : unit.param).AsTensor(options_.dtype);
}

Tensor UnitStates::ParamSlice(int u) const {
  const Placement home = plan_.units[u].param.placement;
  const Tensor at_home =
      OnDisk(u) ? slice_swap_->Get(u, options_.dtype) : units_[u].param.AsTensor(options_.dtype);
  return at_home.Slice(rank_ * SliceElems(u) - BeginOf(home, u), SliceElems(u));
}

Tensor UnitStates::GatherTarget(int u) {
  Unit& unit = units_[u];
  if (IsSharded(u) && !unit.gathered) {
    unit.gathered =
        memory_.device.Allocate(options_.dtype, unit.layout.num_elems, "gathered parameters");
  }
  return Param(u);
}

Tensor UnitStates::Grad(int u) {
  return WholeGrad(u, &Unit::grad, options_.dtype, "gradients");
}

Tensor UnitStates::GradSum(int u) {
  return WholeGrad(u, &Unit::grad_sum, options_.grad_dtype, "accumulated gradients");
}

Tensor UnitStates::WholeGrad(int u, Buffer Unit::*grad, DType dtype, const char* use) {
  Buffer& buffer = units_[u].*grad;
  if (!buffer) {
    buffer = memory_.device.Allocate(dtype, units_[u].layout.num_elems, use);
    memory_.kernels.Run(op::Fill{buffer.AsTensor(dtype), 0});
  }
  return buffer.AsTensor(dtype);
}

void UnitStates::FoldGrad(int u) {
  memory_.kernels.Run(op::Accumulate{GradSum(u), Grad(u)});
  units_[u].grad.Free();
}

Tensor UnitStates::GradSlice(int u) {
  Unit& unit = units_[u];
  if (!unit.grad_slice) {
    unit.grad_slice = memory_.arena(plan_.units[u].reduced_grad_tier())
                          .Allocate(options_.grad_dtype, SliceElems(u), "gradient slices");
  }
  return unit.grad_slice.AsTensor(options_.grad_dtype);
}

Tensor UnitStates::ReducedGrad(int u) const {
  const Unit& unit = units_[u];
  const bool shard = plan_.optimizer_home == Placement::kShard;
  const Buffer& buffer = shard ? unit.grad_slice : FoldsGrads() ? unit.grad_sum : unit.grad;
  const DType dtype = shard || FoldsGrads() ? options_.grad_dtype : options_.dtype;
  DSAT_CHECK(buffer, "unit {} has no gradient", u);
  return buffer.AsTensor(dtype);
}

void UnitStates::FreeWholeGrad(int u) {
  units_[u].grad.Free();
  units_[u].grad_sum.Free();
}

void UnitStates::FreeGrads(int u) {
  FreeWholeGrad(u);
  units_[u].grad_slice.Free();
}

Tensor UnitStates::ParamOf(const SubGroup& group) const {
  // With one rank, a slice is the whole.
  const bool slice = plan_.optimizer_home == Placement::kShard || IsSharded(group.unit);
  const Tensor all = slice ? ParamSlice(group.unit) : Param(group.unit);
  return all.Slice(group.offset, group.num_elems);
}

OptimizerView UnitStates::Optimizer(const SubGroup& group, int index) const {
  const Unit& unit = units_[group.unit];
  const auto part = [&](const Tensor& all) { return all.Slice(group.offset, group.num_elems); };
  OptimizerView view;
  view.rounding = {options_.seed, group.unit,
                   BeginOf(plan_.optimizer_home, group.unit) + group.offset};
  view.grad = part(ReducedGrad(group.unit));
  if (group.on_disk) {
    view.moments = Swapped(index);
    view.master = view.moments.back();
    view.moments.pop_back();
    return view;
  }
  if (plan_.units[group.unit].param.tier == plan_.units[group.unit].optimizer_tier) {
    view.param = ParamOf(group);
  }
  view.master = unit.master ? part(unit.master.AsTensor(options_.master_dtype)) : view.param;
  for (const Buffer& moment : unit.moments)
    view.moments.push_back(part(moment.AsTensor(options_.moment_dtype)));
  return view;
}

void UnitStates::set_trace(Trace* trace) {
  if (state_swap_) state_swap_->set_trace(trace, "disk, optimizer state", &TraceEvent::sub_group);
  if (slice_swap_) slice_swap_->set_trace(trace, "disk, parameters", &TraceEvent::unit);
}

AioTraffic UnitStates::disk_traffic() const {
  return (state_swap_ ? state_swap_->traffic() : AioTraffic{}) +
         (slice_swap_ ? slice_swap_->traffic() : AioTraffic{});
}

int64_t UnitStates::disk_bytes() const {
  return (state_swap_ ? state_swap_->size_bytes() : 0) +
         (slice_swap_ ? slice_swap_->size_bytes() : 0);
}

template <typename WholeOf>
std::vector<Tensor> UnitStates::Views(int u, WholeOf whole_of) const {
  std::vector<Tensor> views;
  const auto add = [&](int layer, size_t param, const Tensor& whole) {
    const int64_t num_elems = model_.layers[layer]->params()[param].StoredElems();
    const bool empty = whole.num_elems == 0;
    views.push_back(empty ? Tensor{} : whole.Slice(units_[layer].layout.offsets[param], num_elems));
  };
  const size_t num_params = model_.layers[u]->params().size();
  const Tensor own = num_params > 0 ? whole_of(u) : Tensor{};
  for (size_t i = 0; i < num_params; ++i)
    add(u, i, own);
  for (const TiedParam& tied : model_.layers[u]->tied()) {
    add(tied.layer, static_cast<size_t>(tied.param), whole_of(tied.layer));
  }
  return views;
}

std::vector<Tensor> UnitStates::LayerParams(int u) const {
  return Views(u, [this](int unit) { return Param(unit); });
}

std::vector<Tensor> UnitStates::LayerGrads(int u) {
  return Views(u, [this](int unit) { return plan_.units[unit].trained ? Grad(unit) : Tensor{}; });
}

}  // namespace dsat::engine
