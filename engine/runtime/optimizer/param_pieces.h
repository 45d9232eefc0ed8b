// The parameters within a sub-group.
#ifndef DSAT_ENGINE_RUNTIME_OPTIMIZER_PARAM_PIECES_H_
#define DSAT_ENGINE_RUNTIME_OPTIMIZER_PARAM_PIECES_H_

#include <cstdint>
#include <vector>

#include "engine/config/ds_config.h"
#include "engine/model/layer.h"
#include "engine/plan/plan.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// A part of one parameter, with its padding, in one rank's slice of its unit.
struct ParamPiece {
  int64_t param = 0;  // Index in the model.
  int64_t row = 0;    // The rank, if the slices of all of them rest here.
  int64_t begin = 0;  // In the sub-group's OptimizerView.
  int64_t num_elems = 0;
  bool decays = true;  // Not the weight of a normalization, and not a bias.
};

using ParamPieces = std::vector<ParamPiece>;

// The pieces of a sub-group, in order and cut where ranks' slices meet. The zeros that pad a
// parameter belong to its last piece, because they are copied with it.
ParamPieces PiecesOf(const Model& model, const Plan& plan, const UnitStates& states,
                     const SubGroup& group);

// The settings for a piece: without weight decay where it does not apply.
OptimizerConfig SettingsOf(const OptimizerConfig& config, const ParamPiece& piece);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_OPTIMIZER_PARAM_PIECES_H_
