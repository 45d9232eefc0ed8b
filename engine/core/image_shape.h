// The size of the images of a model or a dataset.
#ifndef DSAT_ENGINE_CORE_IMAGE_SHAPE_H_
#define DSAT_ENGINE_CORE_IMAGE_SHAPE_H_

#include <cstdint>

namespace dsat::engine {

// All sizes are 0 for tokens instead of images.
struct ImageShape {
  int64_t height = 0, width = 0, channels = 0;
  int64_t NumElems() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CORE_IMAGE_SHAPE_H_
