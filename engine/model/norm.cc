// The normalization of a transformer.
#include "engine/model/norm.h"

#include "engine/backend/kernels.h"

namespace dsat::engine {

void Norm::Forward(const LayerContext& ctx, Tensor y, Tensor stats, Tensor x, size_t param,
                   int64_t N) const {
  if (kind == Kind::kRmsNorm) {
    ctx.kernels.Run(op::RmsNormForward{y, stats, x, ctx.params[param], N, C, eps});
  } else {
    ctx.kernels.Run(op::LayerNormForward{y, stats.Slice(0, N), stats.Slice(N, N), x,
                                         ctx.params[param], ctx.params[param + 1], N, C});
  }
}

void Norm::Backward(const LayerContext& ctx, Tensor dx, Tensor dy, Tensor x, Tensor stats,
                    size_t param, int64_t N, bool accumulate) const {
  if (kind == Kind::kRmsNorm) {
    ctx.kernels.Run(op::RmsNormBackward{dx, ctx.Grad(param), dy, x, ctx.params[param], stats, N, C,
                                        accumulate});
  } else {
    ctx.kernels.Run(op::LayerNormBackward{dx, ctx.Grad(param), ctx.Grad(param + 1), dy, x,
                                          ctx.params[param], stats.Slice(0, N), stats.Slice(N, N),
                                          N, C, accumulate});
  }
}

}  // namespace dsat::engine
