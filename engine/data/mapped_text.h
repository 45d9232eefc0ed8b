// Files read as one long text of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dsat::engine {

// The files that `path` means: the file itself, a folder's files (recursively, without those whose
// names start with a dot), or the matches of a glob pattern (`*`, `?`, `[`), folders among them
// included. Sorted. Throws kNotFound naming the path if there is no such file or match,
// kPermissionDenied if a folder cannot be read.
std::vector<std::string> FindFiles(const std::string& path);

// Read-only memory maps, so that ranks on one host share the pages and nothing is read ahead of
// use. The files must not shrink meanwhile. Thread-safe.
class MappedText {
 public:
  // Throws kNotFound, kPermissionDenied or kUnavailable naming the file.
  explicit MappedText(const std::vector<std::string>& paths);

  // The sum of the files' sizes.
  int64_t size() const { return size_; }
  // Calls visit(piece) on the pieces that make up bytes [begin, begin + count), in order.
  // REQUIRES: the range lies within size().
  template <typename Visit>
  void Read(int64_t begin, int64_t count, const Visit& visit) const {
    for (size_t file = FileAt(begin); count > 0; ++file) {
      const std::string_view piece = files_[file].text.substr(
          static_cast<size_t>(begin - files_[file].begin), static_cast<size_t>(count));
      visit(piece);
      begin += static_cast<int64_t>(piece.size());
      count -= static_cast<int64_t>(piece.size());
    }
  }
  // Copies them to `out`.
  void Copy(int64_t begin, int64_t count, void* out) const;

 private:
  struct Unmap {
    size_t bytes = 0;
    void operator()(const char* data) const;
  };
  struct File {
    std::unique_ptr<const char, Unmap> memory;
    std::string_view text;  // The bytes in `memory`; not empty.
    int64_t begin = 0;      // Where its first byte is in the whole.
  };

  void Map(const std::string& path);
  size_t FileAt(int64_t offset) const;

  std::vector<File> files_;
  int64_t size_ = 0;
};

}  // namespace dsat::engine
