// A zip file of uncompressed entries whose data is aligned (PKWARE APPNOTE 6.3.10), as PyTorch
// wants it: its reader maps tensors straight from the file.
#ifndef DSAT_ENGINE_FILES_ZIP_WRITER_H_
#define DSAT_ENGINE_FILES_ZIP_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_writer.h"

namespace dsat::engine {

class ZipWriter {
 public:
  static constexpr int64_t kAlignBytes = 64;

  // Sizes and offsets from `zip64_from` on are written in zip64's fields of 8 bytes.
  explicit ZipWriter(const std::string& path, int64_t zip64_from = 0xFFFFFFFF);

  // One entry in one call, or in pieces: Begin, Append of `bytes` in all, End.
  void Add(const std::string& name, std::string_view data);
  void Begin(const std::string& name, int64_t bytes);
  void Append(std::string_view data);
  void End();
  // Writes the directory, after which the file appears under its name. The last call.
  void Commit();

 private:
  struct Entry {
    std::string name;
    int64_t bytes = 0;
    int64_t offset = 0;  // Of the local header.
    uint32_t crc = 0;
  };
  std::string DirectoryRecord(const Entry& entry) const;

  const int64_t zip64_from_;
  FileWriter file_;
  std::vector<Entry> entries_;
  int64_t data_offset_ = 0;  // Of the last entry.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_FILES_ZIP_WRITER_H_
