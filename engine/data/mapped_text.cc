// Files read as one long text of bytes.
#include "engine/data/mapped_text.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/unique_fd.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

bool IsHidden(const fs::path& path) {
  return path.filename().native().starts_with('.');
}

void AddFolder(const fs::path& folder, std::vector<std::string>& files) {
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(folder, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    if (IsHidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(error)) {
      files.push_back(entry->path());
    }
    if (!error) entry.increment(error);
  }
  if (error) ThrowErrno(folder.native(), error.value());
}

void AddPath(const fs::path& path, std::vector<std::string>& files) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    AddFolder(path, files);
  } else {
    files.push_back(path);
  }
}

void AddMatches(const std::string& pattern, std::vector<std::string>& files) {
  glob_t matches{};
  const std::unique_ptr<glob_t, decltype(&globfree)> owner(&matches, globfree);
  const int result = glob(pattern.c_str(), GLOB_ERR, nullptr, &matches);
  if (result == GLOB_NOMATCH) Throw(ErrorCode::kNotFound, "{}: no file matches", pattern);
  if (result != 0) {
    Throw(ErrorCode::kPermissionDenied, "{}: a folder of the pattern cannot be read", pattern);
  }
  for (size_t i = 0; i < matches.gl_pathc; ++i)
    AddPath(matches.gl_pathv[i], files);
}

}  // namespace

std::vector<std::string> FindFiles(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  if (fs::exists(path, error)) {  // A file's name may hold the characters of patterns.
    AddPath(path, files);
  } else if (path.find_first_of("*?[") != std::string::npos) {
    AddMatches(path, files);
  } else if (error) {
    ThrowErrno(path, error.value());
  } else {
    Throw(ErrorCode::kNotFound, "{}: no such file or folder", path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

MappedText::MappedText(const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    Map(path);
}

void MappedText::Unmap::operator()(const char* data) const {
  munmap(const_cast<char*>(data), bytes);
}

void MappedText::Map(const std::string& path) {
  // Without O_NONBLOCK, a pipe would wait for a writer.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0) ThrowErrno(path, errno);
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes == 0) return;
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) ThrowErrno(path, errno);
  const auto* text = static_cast<const char*>(data);
  files_.push_back({{text, {bytes}}, {text, bytes}, size_});
  size_ += info.st_size;
}

void MappedText::Copy(int64_t begin, int64_t count, void* out) const {
  auto* to = static_cast<char*>(out);
  Read(begin, count, [&to](std::string_view piece) { to += piece.copy(to, piece.size()); });
}

size_t MappedText::FileAt(int64_t offset) const {
  const auto after =
      std::upper_bound(files_.begin(), files_.end(), offset,
                       [](int64_t wanted, const File& file) { return wanted < file.begin; });
  return static_cast<size_t>(after - files_.begin()) - 1;
}

}  // namespace dsat::engine
