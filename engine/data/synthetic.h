// Generated data with a distribution that can be learned.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/data/dataset.h"

namespace dsat::engine {

// The draws from a distribution. Training and validation share none.
struct SyntheticDraws {
  int64_t seed = 0;
  bool validation = false;
  int64_t num_samples = Dataset::kEndless;
};

// Tokens of a Markov chain that is the same for every seed: each token has four successors, with
// probabilities 1/2, 1/4, 1/8 and 1/8. A model that has learned it has a loss of at most 1.75 ln 2
// = 1.21 nats.
std::unique_ptr<Dataset> MakeMarkovTokens(int64_t vocab_size, const SyntheticDraws& draws);

// Images of a pattern for each class, the same for every seed, plus noise of twice its amplitude:
// one pixel says little about the class, but the whole image determines it.
std::unique_ptr<Dataset> MakePatternImages(const ImageShape& shape, int64_t classes,
                                           const SyntheticDraws& draws);

}  // namespace dsat::engine
