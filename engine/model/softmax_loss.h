// The end of every model: softmax and cross entropy over the classes, or the positions from which a
// prediction continues.
#pragma once

#include "engine/model/layer.h"

namespace dsat::engine {

// Stores the mean loss over those of the batch's B * T tokens whose target counts (0 if none does,
// where PyTorch's mean is NaN) in *ctx.loss, if set, and turns logits (B * T, V + vocab_padding)
// into their gradient, times ctx.loss_grad_scale. Columns of the padding are no classes: their
// gradient is 0. With ctx.left_logits, leaves the logits and says there where they are.
void SoftmaxLossInPlace(const LayerContext& ctx, Tensor logits, int64_t V,
                        int64_t vocab_padding = 0);

// Returns the last position of each row of x (B, T, C), as (B, C), for a prediction.
Buffer LastPositions(const LayerContext& ctx, const Buffer& x, int64_t C);

}  // namespace dsat::engine
