// The end of every model here.
#include "engine/model/softmax_loss.h"

#include <utility>

#include "engine/backend/kernels.h"

namespace dsat::engine {

void SoftmaxLossInPlace(const LayerContext& ctx, Tensor logits, int64_t V, int64_t vocab_padding) {
  if (ctx.left_logits != nullptr) {
    const int64_t stride = V + vocab_padding;
    *ctx.left_logits = {logits.Slice(0, ctx.NumTokens() * stride), V, stride};
    return;
  }
  op::CrossEntropyInPlace loss = {
      ctx.loss,          logits, ctx.batch.targets,   ctx.NumTokens(),
      V + vocab_padding, V,      ctx.loss_grad_scale, ctx.batch.num_ignored};
  loss.grad_scale /= static_cast<float>(loss.Divisor());
  ctx.kernels.Run(loss);
}

Buffer LastPositions(const LayerContext& ctx, const Buffer& x, int64_t C) {
  const auto [B, T] = std::pair(ctx.batch.B, ctx.batch.T);
  Buffer last = ctx.arena.Allocate(ctx.dtype, B * C, "last positions");
  for (int64_t b = 0; b < B; ++b) {
    ctx.kernels.Run(op::Cast{last.AsTensor(ctx.dtype).Slice(b * C, C),
                             x.AsTensor(ctx.dtype).Slice((b * T + T - 1) * C, C)});
  }
  return last;
}

}  // namespace dsat::engine
