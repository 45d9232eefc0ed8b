// Files of small images with classes.
#include "engine/data/image_source.h"

#include <algorithm>
#include <filesystem>
#include <limits>

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

class Cifar10 final : public ImageSource {
 public:
  explicit Cifar10(const std::vector<std::string>& files) : records_(files) {
    for (const std::string& file : files) {
      const auto bytes = static_cast<int64_t>(std::filesystem::file_size(file));
      if (bytes % kRecordBytes == 0) continue;
      Throw(ErrorCode::kInvalidArgument,
            "{}: {} bytes; expected records of {} (CIFAR-10's binary version)", file, bytes,
            kRecordBytes);
    }
  }

  int64_t size() const override { return records_.size() / kRecordBytes; }
  ImageShape shape() const override { return {kSize, kSize, 3}; }
  int64_t num_classes() const override { return 10; }

  int32_t Read(int64_t index, float* pixels) const override {
    const std::string record = BytesAt(records_, index * kRecordBytes, kRecordBytes);
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
  }

 private:
  static constexpr int64_t kSize = 32;
  static constexpr size_t kPlane = 32 * 32;
  static constexpr int64_t kRecordBytes = 1 + 3 * 32 * 32;

  MappedText records_;
};

// An IDX file of unsigned bytes: 0, 0, 8, the number of dimensions, each as 4 bytes, big end first.
struct IdxFile {
  // Throws unless it has one of these numbers of dimensions.
  IdxFile(const std::string& file, const std::vector<size_t>& allowed_dims)
      : path(file), text({file}) {
    const std::string start = BytesAt(text, 0, std::min<int64_t>(text.size(), 4));
    const bool is_idx = start.size() == 4 && start[0] == 0 && start[1] == 0 && start[2] == 8;
    const size_t num_dims = is_idx ? static_cast<uint8_t>(start[3]) : 0;
    data_offset = 4 + 4 * static_cast<int64_t>(num_dims);
    const bool allowed = std::ranges::find(allowed_dims, num_dims) != allowed_dims.end();
    if (!allowed || text.size() < data_offset) {
      Throw(ErrorCode::kInvalidArgument,
            "{}: expected an IDX file of unsigned bytes with {} dimensions, uncompressed", path,
            allowed_dims.front());
    }
    int64_t expected = 1;
    for (size_t i = 0; i < num_dims; ++i) {
      int64_t& dim = dims.emplace_back(0);
      for (const char c : BytesAt(text, 4 + 4 * static_cast<int64_t>(i), 4))
        dim = dim * 256 + static_cast<uint8_t>(c);
      if (__builtin_mul_overflow(expected, dim, &expected))
        Throw(ErrorCode::kInvalidArgument, "{}: its header says {} bytes and more", path,
              std::numeric_limits<int64_t>::max());
    }
    if (text.size() - data_offset == expected) return;
    Throw(ErrorCode::kInvalidArgument, "{}: {} bytes of data; its header says {}", path,
          text.size() - data_offset, expected);
  }

  std::string path;
  MappedText text;
  std::vector<int64_t> dims;
  int64_t data_offset = 0;
};

class Idx final : public ImageSource {
 public:
  Idx(const std::string& images, const std::string& labels, int64_t num_classes)
      : images_(images, {3, 4}), labels_(labels, {1}), num_classes_(num_classes) {
    if (images_.dims[0] == labels_.dims[0]) return;
    Throw(ErrorCode::kInvalidArgument, "{} has {} images, {} has {} labels", images,
          images_.dims[0], labels, labels_.dims[0]);
  }

  int64_t size() const override { return images_.dims[0]; }
  ImageShape shape() const override {
    return {images_.dims[1], images_.dims[2], images_.dims.size() == 4 ? images_.dims[3] : 1};
  }
  int64_t num_classes() const override { return num_classes_; }

  int32_t Read(int64_t index, float* pixels) const override {
    const int64_t count = shape().NumElems();
    const std::string image = BytesAt(images_.text, images_.data_offset + index * count, count);
    std::ranges::transform(image, pixels, PixelOf);
    const auto label =
        static_cast<uint8_t>(BytesAt(labels_.text, labels_.data_offset + index, 1)[0]);
    if (label < num_classes_) return label;
    Throw(
        ErrorCode::kInvalidArgument,
        "{}: label {} is {}; expected less than classes, {}: raise those of the data and the model",
        labels_.path, index, label, num_classes_);
  }

 private:
  IdxFile images_, labels_;
  int64_t num_classes_;
};

}  // namespace

std::unique_ptr<ImageSource> OpenCifar10(const std::vector<std::string>& files) {
  return std::make_unique<Cifar10>(files);
}

std::unique_ptr<ImageSource> OpenIdx(const std::string& images, const std::string& labels,
                                     int64_t num_classes) {
  return std::make_unique<Idx>(images, labels, num_classes);
}

}  // namespace dsat::engine
