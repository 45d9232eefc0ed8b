// The model state of every unit on this rank: parameters, gradients and optimizer state.
//
// The parameters of a unit, each with its vocabulary padding, form one flat vector of the model's
// dtype. Each parameter is aligned to kAlignElems, and the vector is padded with zeros to P equal
// slices; rank r owns the r-th slice. Gradients, the master copy and the moments have the same
// layout. Each state rests on the tier that the plan gives it: in device memory, in host memory, or
// in a file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/kernels.h"
#include "engine/core/arena.h"
#include "engine/model/layer.h"
#include "engine/plan/build_plan.h"
#include "engine/plan/plan.h"
#include "engine/runtime/state/swap_file.h"
#include "engine/runtime/state/tier_memory.h"

namespace dsat::engine {

// Where the parameters of one layer lie in its unit.
struct UnitLayout {
  std::vector<int64_t> offsets;  // Per parameter.
  int64_t num_elems = 0;         // Padded.
};
UnitLayout LayoutOf(const Layer& layer, int world_size);

// The description of the model that BuildPlan needs.
std::vector<PlanUnit> PlanUnitsOf(const Model& model, int world_size);

struct StateOptions {
  DType dtype = DType::kF32;       // The type of parameters and activations.
  DType grad_dtype = DType::kF32;  // In which gradients of micro-batches accumulate.
  // The types of what the optimizer updates and of its moments; the latter is not wider.
  DType master_dtype = DType::kF32;
  DType moment_dtype = DType::kF32;
  int num_moments = 0;
  uint64_t seed = 0;
  SwapOptions optimizer_swap;  // For state on the nvme tier.
  SwapOptions param_swap;
};

struct Unit {
  UnitLayout layout;
  Buffer param;                 // At home: whole, or this rank's slice. Not if it rests on disk.
  Buffer gathered;              // Whole copy of sharded parameters, while they are in use.
  Buffer grad;                  // Whole; from the first backward that writes it.
  Buffer grad_sum;              // Whole, in grad_dtype, if gradients are folded into it.
  Buffer grad_slice;            // This rank's slice of the reduced gradient, if it rests sharded.
  Buffer master;                // Over the optimizer's home. Not if the parameter serves.
  std::vector<Buffer> moments;  // Over the optimizer's home.
};

// Part of a unit's resting state: elements [begin, begin + data.num_elems) of the unit.
struct StatePart {
  std::string state;  // "param", "master", "moment0", ...
  int64_t begin = 0;
  Tensor data;
};

// The arguments of stochastic rounding's random bits, besides the number of the update.
struct RoundingSource {
  uint64_t seed = 0;
  int unit = 0;
  int64_t begin = 0;  // The first element in the unit.
};

// The operands of one optimizer call: tensors of equal length, in memory of the optimizer's tier.
struct OptimizerView {
  Tensor param, master, grad;
  std::vector<Tensor> moments;
  RoundingSource rounding;

  // Elements [begin, begin + num_elems) of each.
  OptimizerView Slice(int64_t begin, int64_t num_elems) const {
    OptimizerView part = *this;
    part.rounding.begin += begin;
    for (Tensor* t : {&part.param, &part.master, &part.grad})
      *t = t->Slice(begin, num_elems);
    for (Tensor& moment : part.moments)
      moment = moment.Slice(begin, num_elems);
    return part;
  }
};

class UnitStates {
 public:
  // Allocates and initializes all resident state, unit by unit, so that a model whose parameters
  // are sharded is never whole in one place. `model`, `plan` and the memory must outlive this.
  // Throws OutOfMemory, or as SwapFile.
  UnitStates(const Model& model, const Plan& plan, const StateOptions& options, int rank,
             const Memory& memory);

  int num_units() const { return static_cast<int>(units_.size()); }
  Unit& unit(int u) { return units_[u]; }
  const Unit& unit(int u) const { return units_[u]; }
  const Memory& memory() const { return memory_; }
  DType dtype() const { return options_.dtype; }
  int rank() const { return rank_; }  // Data-parallel.
  int64_t SliceElems(int u) const { return units_[u].layout.num_elems / plan_.world_size; }

  // Whole parameters. REQUIRES: they rest replicated, or are gathered.
  Tensor Param(int u) const;
  bool IsSharded(int u) const { return plan_.units[u].param.placement == Placement::kShard; }
  // Whether this copy of the unit is saved, of those on several pipeline stages.
  bool IsSavedHere(int u) const { return plan_.units[u].counted; }
  // This rank's slice of the parameters at home. REQUIRES: it is in memory.
  Tensor ParamSlice(int u) const;
  // Memory for a gathered copy, or the parameters themselves if they rest replicated.
  Tensor GatherTarget(int u);
  // The whole gradient as backward writes it; allocates it with zeros if there is none.
  Tensor Grad(int u);
  // The whole gradient that is reduced: the one of Grad, or the sum that it is folded into.
  Tensor GradToReduce(int u) { return FoldsGrads() ? GradSum(u) : Grad(u); }
  // Adds the whole gradient to the sum of another dtype, and frees it.
  void FoldGrad(int u);
  // This rank's slice of the reduced gradient; allocates it uninitialized if there is none.
  Tensor GradSlice(int u);
  // The reduced gradient over the optimizer's home. REQUIRES: there is one.
  Tensor ReducedGrad(int u) const;
  void FreeWholeGrad(int u);
  void FreeGrads(int u);

  // The operands of the optimizer for a sub-group. `param` is empty if the parameters are on
  // another tier than the optimizer, or on disk. REQUIRES: state on disk is in memory.
  OptimizerView Optimizer(const SubGroup& group, int index) const;
  // This rank's part of the parameters over the optimizer's home, elements [offset, + n).
  Tensor ParamOf(const SubGroup& group) const;

  // Shows the visitor all state of a unit on this rank, in host memory. State of another tier is
  // copied there while the visitor sees it; with kWrite the visitor may change it, and it is copied
  // back. State in device memory is shown in consecutive parts. With kShape there is no data, and
  // every state is whole. Gradients are not shown. Throws OutOfMemory of the host, or as SwapFile.
  enum class Access { kShape, kRead, kWrite };
  using Visitor = std::function<void(const StatePart&)>;
  void Visit(int u, Access access, const Visitor& visitor);

  SwapFile* state_swap() { return state_swap_ ? &*state_swap_ : nullptr; }
  // Sets the trace of both swap files (SwapFile::set_trace).
  void set_trace(Trace* trace);
  AioTraffic disk_traffic() const;
  int64_t disk_bytes() const;  // Size of the swap files.
  SwapFile* slice_swap() { return slice_swap_ ? &*slice_swap_ : nullptr; }

  // Views in the order of the layer's params(), then tied(). Gradients of frozen layers are empty.
  std::vector<Tensor> LayerParams(int u) const;
  std::vector<Tensor> LayerGrads(int u);

 private:
  bool FoldsGrads() const {
    return options_.grad_dtype != options_.dtype && plan_.grad_home != Placement::kShard;
  }
  bool OnDisk(int u) const { return plan_.units[u].param.tier == Tier::kNvme; }
  int64_t HomeElems(Placement home, int u) const;
  int64_t BeginOf(Placement home, int u) const {
    return home == Placement::kShard ? rank_ * SliceElems(u) : 0;
  }
  Tensor GradSum(int u);
  // Memory of the unit for a whole gradient; zeroed if it is new.
  Tensor WholeGrad(int u, Buffer Unit::*grad, DType dtype, const char* use);
  // The dtypes of a state on disk: its moments and its master copy, wider types first.
  std::vector<DType> SwappedTypes() const;
  std::vector<Tensor> Swapped(int sub_group) const;
  void MakeSwapFiles();
  // A state of a unit that rests in memory, over `home`.
  struct StateInMemory {
    std::string name;  // As StatePart::state.
    Buffer* buffer = nullptr;
    DType dtype = DType::kF32;
    Home home;
    const char* use = "";  // As Arena::Allocate's.
  };
  // Lists a master copy, apart from the parameter, if the optimizer works in another dtype, or on
  // another tier, than the parameter's.
  std::vector<StateInMemory> StatesInMemory(int u);
  void InitUnit(int u);
  // Elements [begin, begin + data.num_elems) of a unit's state, where they rest.
  struct RestingPart {
    int64_t begin = 0;
    Tensor data;
    Tier tier = Tier::kHost;
  };
  void InitParams(int u, const std::vector<RestingPart>& parts);
  void Put(const RestingPart& part, int64_t begin, Tensor values);
  void Show(const StatePart& part, Tier tier, Access access, const Visitor& visitor);
  void VisitSwapped(int u, Access access, const Visitor& visitor);
  void MoveSwapped(int u, Access access, const std::vector<Tensor>& tensors);
  void VisitSlice(int u, Access access, const Visitor& visitor);
  template <typename WholeOf>
  std::vector<Tensor> Views(int u, WholeOf whole_of) const;

  const Model& model_;
  const Plan& plan_;
  const StateOptions options_;
  const int rank_;
  const Memory memory_;
  std::vector<Unit> units_;
  std::optional<SwapFile> state_swap_;  // A region per sub-group.
  std::optional<SwapFile> slice_swap_;  // A region per unit.
};

}  // namespace dsat::engine
