// The parameters within a sub-group, and what differs between them.
#include "engine/runtime/optimizer/param_pieces.h"

#include <algorithm>

namespace dsat::engine {

ParamPieces PiecesOf(const Model& model, const Plan& plan, const UnitStates& states,
                     const SubGroup& group) {
  const bool shard = plan.optimizer_home == Placement::kShard;
  const int64_t slice = states.SliceElems(group.unit);
  const int64_t begin = (shard ? states.rank() * slice : 0) + group.offset;  // In the unit.
  const int64_t end = begin + group.num_elems;
  int64_t param = 0;
  for (int u = 0; u < group.unit; ++u)
    param += static_cast<int64_t>(model.layers[u]->params().size());
  ParamPieces pieces;
  const auto& specs = model.layers[group.unit]->params();
  const auto& layout = states.unit(group.unit).layout;
  for (size_t i = 0; i < specs.size(); ++i, ++param) {
    const int64_t param_begin = layout.offsets[i];
    const int64_t next = i + 1 < specs.size() ? layout.offsets[i + 1] : layout.num_elems;
    const int64_t param_end = std::min(end, next);
    // Cut where ranks' slices meet even if they all rest here: sums are formed in the same order.
    for (int64_t from = std::max(begin, param_begin); from < param_end;) {
      const int64_t row = from / slice;
      const int64_t to = std::min(param_end, (row + 1) * slice);
      pieces.push_back(
          {param, shard ? 0 : row, from - begin, to - from, specs[i].shape.size() > 1});
      from = to;
    }
  }
  return pieces;
}

OptimizerConfig SettingsOf(const OptimizerConfig& config, const ParamPiece& piece) {
  OptimizerConfig settings = config;
  if (!piece.decays && !config.decay_norms_and_biases) settings.weight_decay = 0;
  return settings;
}

}  // namespace dsat::engine
