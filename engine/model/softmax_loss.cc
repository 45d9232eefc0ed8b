// The end of every language model here: softmax and cross entropy over the vocabulary.
#include "engine/model/softmax_loss.h"

namespace dsat::engine {

void SoftmaxLossInPlace(const LayerContext& ctx, Tensor logits, int64_t V) {
  const int64_t N = ctx.batch.B * ctx.batch.T;
  const float grad_scale = ctx.loss_grad_scale / static_cast<float>(N);
  const double sum =
      ctx.kernels.CrossEntropyInPlace(logits, ctx.batch.targets, N, V, V, grad_scale);
  if (ctx.loss != nullptr) *ctx.loss = sum / static_cast<double>(N);
}

}  // namespace dsat::engine
