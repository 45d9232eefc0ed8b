// The model state of every unit on this rank: where parameters, gradients and optimizer state rest.
//
// Parameters of a unit lie one after another in one flat vector of the model's dtype, each aligned
// to kAlignElems, the whole padded with zeros to P equal slices; rank r's slice is the r-th.
// Gradients, the f32 master copy (16-bit models only) and the f32 moments have the same order.
#ifndef DSAT_ENGINE_UNIT_STATE_H_
#define DSAT_ENGINE_UNIT_STATE_H_

#include <cstdint>
#include <vector>

#include "engine/backend/kernels.h"
#include "engine/memory/arena.h"
#include "engine/model/layer.h"
#include "engine/plan/build_plan.h"
#include "engine/plan/plan.h"

namespace dsat::engine {

// Where the parameters of one layer lie in its unit.
struct UnitLayout {
  std::vector<int64_t> offsets;  // Per parameter.
  int64_t num_elems = 0;         // Padded.
};
UnitLayout LayoutOf(const Layer& layer, int world_size);

// What the plan needs to know of the model.
std::vector<PlanUnit> PlanUnitsOf(const Model& model, int world_size);

struct Unit {
  UnitLayout layout;
  Buffer param;                 // At home: whole, or this rank's slice.
  Buffer gathered;              // Whole copy of sharded parameters, while they are in use.
  Buffer grad;                  // Whole; from the first backward that writes it.
  Buffer grad_slice;            // This rank's slice of the reduced gradient, if it rests sharded.
  Buffer master;                // f32, over the optimizer's home; 16-bit models only.
  std::vector<Buffer> moments;  // f32, over the optimizer's home.
};

// What an optimizer updates: tensors over the optimizer's home, whole or this rank's slice.
struct OptimizerView {
  Tensor param, master, grad;
  std::vector<Tensor> moments;
};

class UnitStates {
 public:
  // Allocates and starts all resident state, unit by unit: with sharded parameters the whole model
  // is never in one place. `model` must outlive this. Throws OutOfMemory.
  UnitStates(const Model& model, const Plan& plan, DType dtype, int rank, int num_moments,
             uint64_t seed, Arena& arena, Kernels& kernels);

  int num_units() const { return static_cast<int>(units_.size()); }
  Unit& unit(int u) { return units_[u]; }
  const Unit& unit(int u) const { return units_[u]; }
  DType dtype() const { return dtype_; }
  int64_t SliceElems(int u) const { return units_[u].layout.num_elems / world_size_; }

  // Whole parameters. REQUIRES: they rest replicated, or are gathered.
  Tensor Param(int u) const;
  // This rank's slice of the parameters at home.
  Tensor ParamSlice(int u) const;
  // The parameters as they rest here: elements [ParamBegin(u), ...) of the unit.
  Tensor ParamAtHome(int u) const;
  int64_t ParamBegin(int u) const { return BeginOf(param_homes_[u], u); }
  // Memory for a gathered copy, or the parameters themselves if they rest replicated.
  Tensor GatherTarget(int u);
  // Whole gradient; zeros if it was not there.
  Tensor Grad(int u);
  // This rank's slice of the reduced gradient; uninitialised if it was not there.
  Tensor GradSlice(int u);
  // Elements [OptimizerBegin(u), ...) of the unit.
  OptimizerView Optimizer(int u) const;
  int64_t OptimizerBegin(int u) const { return BeginOf(optimizer_home_, u); }
  void FreeGrads(int u);

  // Views in the order of the layer's params(), then tied().
  std::vector<Tensor> LayerParams(int u) const;
  std::vector<Tensor> LayerGrads(int u);

 private:
  int64_t HomeElems(Placement home, int u) const;
  int64_t BeginOf(Placement home, int u) const {
    return home == Placement::kShard ? rank_ * SliceElems(u) : 0;
  }
  void AllocateUnit(int u, int num_moments);
  void InitUnit(int u, uint64_t seed);
  template <typename WholeOf>
  std::vector<Tensor> Views(int u, WholeOf whole_of) const;

  const Model& model_;
  const std::vector<Placement> param_homes_;
  const Placement optimizer_home_;
  const DType dtype_;
  const int rank_;
  const int world_size_;
  Arena& arena_;
  Kernels& kernels_;
  std::vector<Unit> units_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_UNIT_STATE_H_
