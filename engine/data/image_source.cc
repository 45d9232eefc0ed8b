// Files of small images with classes.
#include "engine/data/image_source.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "engine/data/mapped_text.h"

namespace dsat::engine {
namespace {

float PixelOf(char byte) {
  return static_cast<float>(static_cast<uint8_t>(byte)) / 127.5F - 1.0F;
}

// Bytes [begin, begin + count).
std::string BytesAt(const MappedText& text, int64_t begin, int64_t count) {
  std::string bytes(static_cast<size_t>(count), '\0');
  text.Copy(begin, count, bytes.data());
  return bytes;
}

// An IDX file of unsigned bytes: 0, 0, 8, the number of dimensions, each as 4 bytes, big end first.
struct IdxFile {
  // Throws unless it has one of these numbers of dimensions.
  IdxFile(const std::string& file, const std::vector<size_t>& allowed_dims) : text({file}) {
    const std::string start = BytesAt(text, 0, std::min<int64_t>(text.size(), 4));
    const bool is_idx = start.size() == 4 && start[0] == 0 && start[1] == 0 && start[2] == 8;
    const size_t num_dims = is_idx ? static_cast<uint8_t>(start[3]) : 0;
    data_offset = 4 + 4 * static_cast<int64_t>(num_dims);
    const bool allowed = std::ranges::find(allowed_dims, num_dims) != allowed_dims.end();
    if (!allowed || text.size() < data_offset) {
      Throw(ErrorCode::kInvalidArgument,
            "{}: expected an IDX file of unsigned bytes with {} dimensions, uncompressed", file,
            allowed_dims.front());
    }
    int64_t expected = 1;
    for (size_t i = 0; i < num_dims; ++i) {
      int64_t& dim = dims.emplace_back(0);
      for (const char c : BytesAt(text, 4 + 4 * static_cast<int64_t>(i), 4))
        dim = dim * 256 + static_cast<uint8_t>(c);
      if (__builtin_mul_overflow(expected, dim, &expected))
        Throw(ErrorCode::kInvalidArgument, "{}: its header says {} bytes and more", file,
              std::numeric_limits<int64_t>::max());
    }
    if (text.size() - data_offset == expected) return;
    Throw(ErrorCode::kInvalidArgument, "{}: {} bytes of data; its header says {}", file,
          text.size() - data_offset, expected);
  }

  MappedText text;
  std::vector<int64_t> dims;
  int64_t data_offset = 0;
};

}  // namespace

ImageSource OpenCifar10(const std::vector<std::string>& files) {
  constexpr int64_t kSize = 32;
  constexpr size_t kPlane = kSize * kSize;
  constexpr int64_t kRecordBytes = 1 + 3 * kPlane;
  const auto records = std::make_shared<const MappedText>(files);
  for (const std::string& file : files) {
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(file));
    if (bytes % kRecordBytes == 0) continue;
    Throw(ErrorCode::kInvalidArgument,
          "{}: {} bytes; expected records of {} (CIFAR-10's binary version)", file, bytes,
          kRecordBytes);
  }
  const auto read = [records](int64_t index, float* pixels) -> int32_t {
    const std::string record = BytesAt(*records, index * kRecordBytes, kRecordBytes);
    const auto label = static_cast<uint8_t>(record[0]);
    if (label >= 10) {
      Throw(ErrorCode::kInvalidArgument,
            "CIFAR-10 record {} has class {}; expected one of 10 (is this CIFAR-100?)", index,
            label);
    }
    for (size_t pixel = 0; pixel < kPlane; ++pixel) {
      for (size_t channel = 0; channel < 3; ++channel)
        pixels[pixel * 3 + channel] = PixelOf(record[1 + channel * kPlane + pixel]);
    }
    return label;
  };
  return {records->size() / kRecordBytes, {kSize, kSize, 3}, 10, read};
}

ImageSource OpenIdx(const std::string& images, const std::string& labels, int64_t num_classes) {
  const auto pictures = std::make_shared<const IdxFile>(images, std::vector<size_t>{3, 4});
  const auto names = std::make_shared<const IdxFile>(labels, std::vector<size_t>{1});
  const std::vector<int64_t>& dims = pictures->dims;
  if (dims[0] != names->dims[0]) {
    Throw(ErrorCode::kInvalidArgument, "{} has {} images, {} has {} labels", images, dims[0],
          labels, names->dims[0]);
  }
  const ImageShape shape = {dims[1], dims[2], dims.size() == 4 ? dims[3] : 1};
  const auto read = [=, count = shape.NumElems()](int64_t index, float* pixels) -> int32_t {
    pictures->text.Read(pictures->data_offset + index * count, count, [&](std::string_view piece) {
      pixels = std::ranges::transform(piece, pixels, PixelOf).out;
    });
    const auto label = static_cast<uint8_t>(BytesAt(names->text, names->data_offset + index, 1)[0]);
    if (label < num_classes) return label;
    Throw(
        ErrorCode::kInvalidArgument,
        "{}: label {} is {}; expected less than classes, {}: raise those of the data and the model",
        labels, index, label, num_classes);
  };
  return {dims[0], shape, num_classes, read};
}

}  // namespace dsat::engine
