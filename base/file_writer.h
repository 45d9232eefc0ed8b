// Writes a file front to back so that a reader, or a crash at any moment, sees it whole or not at
// all.
#ifndef DSAT_BASE_FILE_WRITER_H_
#define DSAT_BASE_FILE_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace dsat {

// Writes beside `path`, to "<path>.tmp.<pid>.<n>", until Commit(). All calls throw by the name of
// `path`, with the system's reason ("No space left on device").
class FileWriter {
 public:
  explicit FileWriter(std::string path);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  // Removes what was written, unless it was committed.
  ~FileWriter();

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // Written so far.
  void Write(std::string_view data);
  // Replaces bytes that were written. REQUIRES: offset + data.size() <= bytes().
  void Patch(int64_t offset, std::string_view data);
  // Brings the content to the disk, then gives it its name, then brings the name to the disk.
  // REQUIRES: the last call.
  void Commit();

 private:
  std::string path_;
  UniqueFd fd_;
  std::string temporary_;  // "" once committed.
  int64_t bytes_ = 0;
};

// Makes the names in a folder survive a loss of power. Some file systems cannot; that is no error.
void SyncFolder(const std::string& folder);

}  // namespace dsat

#endif  // DSAT_BASE_FILE_WRITER_H_
