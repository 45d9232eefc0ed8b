// The facts about models that the code for data and files needs.
#pragma once

#include <cstdint>
#include <string>

namespace dsat::engine {

// The size of the images of a model or a dataset. All sizes are 0 for tokens instead of images.
struct ImageShape {
  int64_t height = 0, width = 0, channels = 0;
  int64_t NumElems() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

// The target of a position that does not count in the loss: ignore_index of PyTorch's
// cross_entropy.
inline constexpr int32_t kIgnoredTarget = -100;

// A part of a parameter that other programs know as a Linear layer: the weight (outs, in) of a
// Linear layer of PyTorch is `outs` columns of a parameter (in, out).
struct LinearPart {
  std::string name;
  int64_t outs = 0;
  bool operator==(const LinearPart&) const = default;
};

}  // namespace dsat::engine
