// Files of small images with classes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/model_parts.h"

namespace dsat::engine {

// Thread-safe.
struct ImageSource {
  int64_t size = 0;  // The number of all images.
  ImageShape shape = {};
  int64_t num_classes = 0;
  // Reads image `index`: pixels (height, width, channels), byte b as b / 127.5 - 1. Returns its
  // class. Throws kInvalidArgument naming a class beyond num_classes.
  std::function<int32_t(int64_t index, float* pixels)> read = {};
};

// CIFAR-10's binary files: records of a class and 32 x 32 red, green and blue bytes, plane by
// plane. Throws as MappedText, kInvalidArgument naming a file that is not made of such records.
ImageSource OpenCifar10(const std::vector<std::string>& files);

// MNIST's pair of IDX files: images (N, height, width) or (N, height, width, channels) and labels
// (N), unsigned bytes. Throws likewise.
ImageSource OpenIdx(const std::string& images, const std::string& labels, int64_t num_classes);

}  // namespace dsat::engine
