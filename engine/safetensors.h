// The safetensors file format (huggingface/safetensors, README "Format"): a JSON header, then
// bytes.
#ifndef DSAT_ENGINE_SAFETENSORS_H_
#define DSAT_ENGINE_SAFETENSORS_H_

#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>

#include "engine/tensor.h"

namespace dsat::engine {

struct NamedTensor {
  std::string name;  // Unique in its file.
  Tensor data;       // Written as one dimension.
};

// Writes and syncs a new file; the caller makes it appear atomically. Throws by file name.
void WriteSafetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                      std::span<const NamedTensor> tensors);

class SafetensorsFile {
 public:
  struct Entry {
    DType dtype = DType::kF32;
    int64_t num_elems = 0;
    int64_t offset = 0;  // Bytes from the start of the file.
  };

  // Reads the header. Throws kNotFound by name, kDataLoss if the file is not a whole one.
  explicit SafetensorsFile(const std::string& path);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr if the file has no such tensor.
  const Entry* Find(const std::string& name) const;
  // Reads elements [begin, begin + dst.num_elems). REQUIRES: they exist, and dst's dtype is theirs.
  void Read(const Entry& entry, int64_t begin, Tensor dst);

 private:
  void ParseHeader(const std::string& text, int64_t data_offset, int64_t file_bytes);

  std::string path_;
  std::ifstream file_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, Entry> entries_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_SAFETENSORS_H_
