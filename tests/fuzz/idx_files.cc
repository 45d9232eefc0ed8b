// A pair of IDX files.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/data/image_source.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The images; the labels.
void IdxFiles(std::string_view input) {
  const auto parts = Parts(input, 2);
  const auto source =
      engine::OpenIdx(WriteInput("images", parts[0]), WriteInput("labels", parts[1]), 10);
  constexpr int64_t kImages = 4;
  if (source.size == 0) return;
  std::vector<float> pixels(static_cast<size_t>(source.shape.NumElems()));
  for (int64_t i = 0; i < std::min(kImages, source.size); ++i)
    source.read(i, pixels.data());
}

}  // namespace dsat::fuzz
