// From the logits of a prediction to tokens, and from tokens to text.
#include "engine/runtime/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace dsat::engine {
namespace {

// The `count` tokens of the largest logits, largest first.
std::vector<int32_t> MostProbable(std::span<const float> logits, size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) tokens.push_back(static_cast<int32_t>(i));
  }
  const auto more = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  count = std::min(count, tokens.size());
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<int64_t>(count), tokens.end(),
                    more);
  tokens.resize(count);
  return tokens;
}

}  // namespace

int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, int64_t row,
                    int64_t position) {
  DSAT_CHECK(!logits.empty() && options.temperature >= 0 && options.top_k >= 0,
             "{} logits, temperature {}, top_k {}", logits.size(), options.temperature,
             options.top_k);
  const bool greedy = options.temperature == 0;
  const auto top_k = options.top_k == 0 ? logits.size() : static_cast<size_t>(options.top_k);
  const std::vector<int32_t> tokens = MostProbable(logits, greedy ? 1 : top_k);
  if (tokens.empty()) {
    Throw(ErrorCode::kFailedPrecondition,
          "every logit is NaN: the parameters of the checkpoint are not finite");
  }
  const double largest = logits[static_cast<size_t>(tokens[0])];
  if (greedy || std::isinf(largest)) return tokens[0];
  std::vector<double> weights;
  for (const int32_t token : tokens) {
    const double logit = logits[static_cast<size_t>(token)];
    weights.push_back(std::exp((logit - largest) / options.temperature));
  }
  Rng rng(options.seed, static_cast<uint64_t>(row), "token");
  rng.Seek(static_cast<uint64_t>(position));
  double left = rng.Uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    left -= weights[i];
    if (left < 0) return tokens[i];
  }
  return tokens[0];  // Rounding used the sum up.
}

}  // namespace dsat::engine
