// Uses of a trained model: the loss over validation data, and generated text.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "engine/config/ds_config.h"
#include "engine/data/dataset.h"
#include "engine/data/text_codec.h"
#include "engine/model/layer.h"
#include "engine/runtime/engine.h"
#include "proto/trial_task.h"

namespace dsat::engine {

struct ValidationResult {
  double loss = 0;          // Mean, nats per token or image.
  int64_t num_samples = 0;  // The number of samples in the mean.
};

// Throws kInvalidArgument if `data` is nullptr, with an example of the key, or has no sample.
void CheckValidation(const Dataset* data, int64_t seq_len);

// The loss over the first `max_samples` of the validation data, or all if there are fewer. A
// collective call. Throws as CheckValidation.
ValidationResult Evaluate(Engine& engine, const Dataset* data, int64_t seq_len,
                          int64_t max_samples = std::numeric_limits<int64_t>::max());

// Prints loss, perplexity, samples and the step of the checkpoint: text, or one JSON line. Throws
// kFailedPrecondition then if the loss is not finite.
void PrintResult(const ValidationResult& result, int64_t step, bool json);

// Prints what the model writes after the prompt: token by token, or one JSON line at the end. The
// same seed gives the same text. Without `codec` (nullptr), prompt and output are the numbers of
// tokens, separated by spaces; a tokenizer's token that ends a document ends a text. The model
// reads the last max_seq_len tokens. Throws kInvalidArgument if the model reads images or cannot
// read the prompt.
void Generate(Engine& engine, const Model& model, const GenerateTask& task, const TextCodec* codec,
              uint64_t seed, bool json);

// A token drawn with the probabilities softmax(logits / temperature) of the top_k of the task;
// `row` and `position` separate the draws of one seed, so that the same (seed, row, position,
// logits) give the same token. Of equal logits the lower token counts as the more probable. NaN
// logits are never drawn. REQUIRES: logits are not empty; temperature and top_k are not negative.
int32_t SampleToken(std::span<const float> logits, const GenerateTask& task, uint64_t seed,
                    int64_t row, int64_t position);

}  // namespace dsat::engine
