// The rotary positions of Llama.
#ifndef DSAT_ENGINE_MODEL_LLAMA_H_
#define DSAT_ENGINE_MODEL_LLAMA_H_

#include <cstdint>
#include <vector>

namespace dsat::engine {

// Llama 3.1's stretching of the rotary frequencies to longer contexts: wavelengths above
// original_positions / low_freq_factor grow by `factor`, those below original_positions /
// high_freq_factor stay, between them it is linear in the frequency.
struct RopeScaling {
  double factor = 1;  // 1: none.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 8192;
};

// Angle per position of each pair of a head's channels: theta^(-2 i / channels), stretched.
std::vector<float> RotaryFrequencies(int64_t channels, double theta, const RopeScaling& scaling);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_LLAMA_H_
