// The safetensors file format (huggingface/safetensors, README "Format"): a JSON header, then
// bytes.
#ifndef DSAT_ENGINE_FILES_SAFETENSORS_H_
#define DSAT_ENGINE_FILES_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_writer.h"
#include "base/unique_fd.h"
#include "engine/core/tensor.h"
#include "engine/files/tensor_file.h"

namespace dsat::engine {

// The format's names: "F32", "BF16", "F16".
const char* SafetensorsName(DType dtype);

class SafetensorsWriter : public TensorFileWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::map<std::string, std::string>& metadata,
                    std::vector<TensorSpec> tensors);
  // The size and the checksum of all that was written, including the header.
  int64_t bytes() const { return file_.bytes(); }
  uint32_t crc32() const { return crc_; }

 private:
  void Begin(const TensorSpec&) override {}
  void Append(std::string_view bytes) override;
  void End() override {}
  void Finish() override { file_.Commit(); }

  FileWriter file_;
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

  const std::string& path() const { return path_; }
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

#endif  // DSAT_ENGINE_FILES_SAFETENSORS_H_
