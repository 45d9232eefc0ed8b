// Data made up on the spot.
#include "engine/data/synthetic.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/rng.h"

namespace dsat::engine {
namespace {

Rng RngOf(const SyntheticDraws& draws, int64_t index) {
  DSAT_CHECK(index >= 0 && index < draws.num_samples, "sample {} of {}", index, draws.num_samples);
  return {static_cast<uint64_t>(draws.seed), static_cast<uint64_t>(index),
          draws.validation ? "validation" : "sample"};
}

class MarkovTokens final : public Dataset {
 public:
  MarkovTokens(int64_t vocab_size, const SyntheticDraws& draws)
      : vocab_size_(static_cast<uint64_t>(vocab_size)), draws_(draws) {}

  void Sample(int64_t index, int64_t T, int32_t* tokens, int32_t* targets) const override {
    Rng rng = RngOf(draws_, index);
    uint64_t token = rng.Below(vocab_size_);
    for (int64_t t = 0; t < T; ++t) {
      tokens[t] = static_cast<int32_t>(token);
      // The number of zeros before the first one in random bits is j with probability 2^-(j + 1).
      const int successor = std::min(std::countr_zero(rng.NextU64()), 3);
      token = Successor(token, successor);
      targets[t] = static_cast<int32_t>(token);
    }
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(vocab_size_); }
  int64_t NumSamples(int64_t) const override { return draws_.num_samples; }

 private:
  uint64_t Successor(uint64_t token, int which) const {
    Rng rng(0, 4 * token + static_cast<uint64_t>(which), "chain");
    return rng.Below(vocab_size_);
  }

  uint64_t vocab_size_;
  SyntheticDraws draws_;
};

class PatternImages final : public Dataset {
 public:
  PatternImages(const ImageShape& shape, int64_t classes, const SyntheticDraws& draws)
      : shape_(shape), classes_(classes), draws_(draws) {}

  void Image(int64_t index, float* pixels, int32_t* target) const override {
    Rng rng = RngOf(draws_, index);
    *target = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(classes_)));
    Rng pattern(0, static_cast<uint64_t>(*target), "pattern");
    for (int64_t i = 0; i < shape_.NumElems(); ++i) {
      const double value = double{static_cast<float>(0.2 * pattern.Normal())} + 0.4 * rng.Normal();
      pixels[i] = static_cast<float>(std::clamp(value, -1.0, 1.0));
    }
  }

  ImageShape image() const override { return shape_; }
  int64_t vocab_size() const override { return classes_; }
  int64_t NumSamples(int64_t) const override { return draws_.num_samples; }

 private:
  ImageShape shape_;
  int64_t classes_;
  SyntheticDraws draws_;
};

}  // namespace

std::unique_ptr<Dataset> MakeMarkovTokens(int64_t vocab_size, const SyntheticDraws& draws) {
  return std::make_unique<MarkovTokens>(vocab_size, draws);
}

std::unique_ptr<Dataset> MakePatternImages(const ImageShape& shape, int64_t classes,
                                           const SyntheticDraws& draws) {
  return std::make_unique<PatternImages>(shape, classes, draws);
}

}  // namespace dsat::engine
