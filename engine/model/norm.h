// The normalization of a transformer: layer norm or RMS norm over the channels of each row.
#ifndef DSAT_ENGINE_MODEL_NORM_H_
#define DSAT_ENGINE_MODEL_NORM_H_

#include <cstdint>

#include "engine/model/layer.h"

namespace dsat::engine {

struct Norm {
  enum class Kind : uint8_t { kLayerNorm, kRmsNorm } kind = Kind::kLayerNorm;
  int64_t C = 0;
  float eps = 1e-5F;  // RMS norm's; layer norm has 1e-5.

  // The number of f32 statistics per row that forward saves for backward.
  int64_t StatsPerRow() const { return kind == Kind::kLayerNorm ? 2 : 1; }
  // A layer norm has a weight and, as the parameter after it, a bias; RMS norm a weight alone.
  int64_t NumParams() const { return kind == Kind::kLayerNorm ? 2 : 1; }

  // y (N, C) = norm(x) with the layer's parameters from `param` on; stats (N *
  // StatsPerRow) f32 is written.
  void Forward(const LayerContext& ctx, Tensor y, Tensor stats, Tensor x, size_t param,
               int64_t N) const;
  // dx (N, C) = or, if accumulate, +=; the gradients of the parameters += unless they are empty.
  void Backward(const LayerContext& ctx, Tensor dx, Tensor dy, Tensor x, Tensor stats, size_t param,
                int64_t N, bool accumulate) const;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_NORM_H_
