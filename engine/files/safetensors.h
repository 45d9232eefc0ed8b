// The safetensors file format (huggingface/safetensors, README "Format"): a JSON header, then
// bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_writer.h"
#include "base/unique_fd.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

// The format's names: "F32", "BF16", "F16". nullopt of any other name.
const char* SafetensorsName(DType dtype);
std::optional<DType> DTypeOf(const std::string& name);

struct TensorSpec {
  std::string name;  // Unique in its file.
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // Row-major.
  int64_t NumElems() const;
  int64_t bytes() const { return NumElems() * BytesPerElem(dtype); }
};

// Writes a file front to back, piece by piece, so that the whole model is never in memory. Errors
// of all calls name the file.
class SafetensorsWriter {
 public:
  // The tensors are announced first, because the header has their offsets. Hugging Face's
  // transformers ask for {"format": "pt"} in the metadata.
  SafetensorsWriter(const std::string& path, const std::map<std::string, std::string>& metadata,
                    std::vector<TensorSpec> tensors);
  // Writes the next elements, tensor after tensor in the order announced. REQUIRES: they lie in one
  // tensor and have its dtype.
  void Write(const Tensor& piece);
  // Completes the file, which then appears under its name, whole and on disk. REQUIRES: every
  // element was written.
  void Commit();
  // The size and the checksum of all that was written, including the header.
  int64_t bytes() const { return file_.bytes(); }
  uint32_t crc32() const { return crc_; }

 private:
  void Append(std::string_view bytes);

  FileWriter file_;
  std::vector<TensorSpec> tensors_;
  size_t next_ = 0;       // The number of tensors that were begun.
  int64_t num_left_ = 0;  // Elements that the last one begun still lacks.
  uint32_t crc_ = 0;
};

// Reading is thread-safe.
class SafetensorsFile {
 public:
  struct Entry {
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    int64_t num_elems = 0;
    int64_t offset = 0;  // Bytes from the start of the file.
  };

  // The product of a shape; nullopt if a size is negative, or the bytes do not fit 63 bits.
  static std::optional<int64_t> NumElems(const std::vector<int64_t>& shape);

  // Reads the header. Throws kNotFound by name, kDataLoss if the file is not a whole one.
  explicit SafetensorsFile(const std::string& path);

  // The tensors in F32, BF16 and F16 by name.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  // The dtypes of the tensors in any other one (masks, indices), which cannot be read.
  const std::map<std::string, std::string>& other_dtypes() const { return other_dtypes_; }
  // nullptr if the file has no such tensor, or in another dtype.
  const Entry* Find(const std::string& name) const;
  // Where a piece of a checkpoint (checkpoint.h) begins in its parameter. Throws kDataLoss.
  int64_t BeginOf(const std::string& name) const;
  // Reads elements [begin, begin + dst.num_elems). REQUIRES: they exist, and dst's dtype is theirs.
  // Throws kDataLoss if the file has become shorter.
  void Read(const Entry& entry, int64_t begin, Tensor dst) const;

 private:
  void ParseHeader(const std::string& text, int64_t data_offset, int64_t file_bytes);

  std::string path_;
  UniqueFd file_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> other_dtypes_;
};

}  // namespace dsat::engine
