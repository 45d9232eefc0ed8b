// Writes a file sequentially. A reader sees the complete file or no file, even after a crash.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace dsat {

// Writes to "<path>.tmp.<pid>.<n>" until Commit(). All calls throw an Error that names `path` and
// the system's reason ("No space left on device").
class FileWriter {
 public:
  explicit FileWriter(std::string path);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  // Removes the temporary file unless it was committed.
  ~FileWriter();

  int64_t bytes() const { return bytes_; }  // Written so far.
  void Write(std::string_view data);
  // Flushes the content to the disk, renames the file to `path`, then flushes the folder. Without
  // `waits_for_disk` it only renames, and a power failure may lose the content. REQUIRES: no other
  // call follows.
  void Commit(bool waits_for_disk = true);

 private:
  std::string path_;
  UniqueFd fd_;
  std::string temporary_;  // "" after Commit().
  int64_t bytes_ = 0;
};

// Flushes the folder's entries to the disk, so that they survive a power failure. A file system
// that does not support this is not an error.
void SyncFolder(const std::string& folder);

}  // namespace dsat
