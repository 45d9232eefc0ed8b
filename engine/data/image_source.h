// Files of small images with classes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/model_parts.h"

namespace dsat::engine {

// Thread-safe.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  // The number of all images.
  virtual int64_t size() const = 0;
  virtual ImageShape shape() const = 0;
  virtual int64_t num_classes() const = 0;
  // Image `index`: pixels (height, width, channels), byte b as b / 127.5 - 1. Returns its class.
  // Throws kInvalidArgument naming a class beyond num_classes().
  virtual int32_t Read(int64_t index, float* pixels) const = 0;
};

// CIFAR-10's binary files: records of a class and 32 x 32 red, green and blue bytes, plane by
// plane. Throws as MappedText, kInvalidArgument naming a file that is not made of such records.
std::unique_ptr<ImageSource> OpenCifar10(const std::vector<std::string>& files);

// MNIST's pair of IDX files: images (N, height, width) or (N, height, width, channels) and labels
// (N), unsigned bytes. Throws likewise.
std::unique_ptr<ImageSource> OpenIdx(const std::string& images, const std::string& labels,
                                     int64_t num_classes);

}  // namespace dsat::engine
