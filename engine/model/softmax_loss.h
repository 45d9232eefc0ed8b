// The end of every language model here: softmax and cross entropy over the vocabulary.
#ifndef DSAT_ENGINE_MODEL_SOFTMAX_LOSS_H_
#define DSAT_ENGINE_MODEL_SOFTMAX_LOSS_H_

#include "engine/model/layer.h"

namespace dsat::engine {

// Stores the mean loss over the batch's B * T tokens in *ctx.loss (if set) and turns
// logits (B * T, V) into their gradient, times ctx.loss_grad_scale.
void SoftmaxLossInPlace(const LayerContext& ctx, Tensor logits, int64_t V);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_SOFTMAX_LOSS_H_
