// The safetensors file format (huggingface/safetensors, README "Format"): a JSON header, then
// bytes.
#ifndef DSAT_ENGINE_SAFETENSORS_H_
#define DSAT_ENGINE_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/tensor.h"

namespace dsat::engine {

struct NamedTensor {
  std::string name;  // Unique in its file.
  Tensor data;       // Written as one dimension.
};

// Writes and syncs a new file; the caller makes it appear atomically. Throws by file name.
void WriteSafetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                      std::span<const NamedTensor> tensors);

// Reading is thread-safe.
class SafetensorsFile {
 public:
  struct Entry {
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    int64_t num_elems = 0;
    int64_t offset = 0;  // Bytes from the start of the file.
  };

  // Reads the header. Throws kNotFound by name, kDataLoss if the file is not a whole one.
  explicit SafetensorsFile(const std::string& path);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  // The tensors in F32, BF16 and F16 by name.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  // The dtypes of the tensors in any other one (masks, indices), which cannot be read.
  const std::map<std::string, std::string>& other_dtypes() const { return other_dtypes_; }
  // nullptr if the file has no such tensor, or in another dtype.
  const Entry* Find(const std::string& name) const;
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

#endif  // DSAT_ENGINE_SAFETENSORS_H_
