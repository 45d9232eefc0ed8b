// Data sets of text, documents, tokens and CIFAR-10 images.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/data/dataset.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {
namespace {

constexpr int64_t kSamples = 4;
constexpr int64_t kSeqLen = 3;
constexpr int64_t kMostPixels = 1 << 16;  // Larger images only run the same code for longer.

void ReadSamples(const engine::Dataset& data) {
  const engine::ImageShape shape = data.image();
  if (shape.NumElems() > kMostPixels) return;
  const int64_t count = std::min(kSamples, data.NumSamples(shape.NumElems() > 0 ? 1 : kSeqLen));
  std::vector<float> pixels(static_cast<size_t>(shape.NumElems()));
  std::vector<int32_t> tokens(kSeqLen), targets(kSeqLen);
  for (int64_t i = 0; i < count; ++i) {
    if (pixels.empty()) {
      data.Sample(i, kSeqLen, tokens.data(), targets.data());
    } else {
      data.Image(i, pixels.data(), targets.data());
    }
  }
}

}  // namespace

// The data block as JSON, whose paths are replaced; the content of the file.
void DatasetFile(std::string_view input) {
  const auto parts = Parts(input, 2);
  Json block = ParseTolerantJson(parts[0], "data");
  const std::string path = WriteInput("data.bin", parts[1]);
  // No other file of this machine is read.
  const auto redirect = [&path](Json& json) {
    for (const char* key : {"path", "images", "labels", "tokenizer"})
      if (json.is_object() && json.contains(key)) json[key] = path;
  };
  redirect(block);
  if (block.is_object() && block.contains("validation")) redirect(block["validation"]);
  const auto training = engine::OpenDataset(block, "/", 1, "/data");
  ReadSamples(*training);
  if (const auto validation = engine::OpenValidationDataset(block, "/", 1, "/data"))
    ReadSamples(*validation);
}

}  // namespace dsat::fuzz
