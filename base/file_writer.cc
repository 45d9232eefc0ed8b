// Writes a file sequentially; a reader sees the complete file or no file.
#include "base/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace dsat {
namespace {

// Creates a file next to `path` that no other writer uses and returns its name.
std::string CreateTemporary(const std::string& path, UniqueFd& fd) {
  for (int i = 0;; ++i) {
    std::string name = fmt::format("{}.tmp.{}.{}", path, ::getpid(), i);
    fd = UniqueFd(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd) return name;
    if (errno != EEXIST) ThrowErrno("cannot write " + path, errno);
  }
}

}  // namespace

FileWriter::FileWriter(std::string path)
    : path_(std::move(path)), temporary_(CreateTemporary(path_, fd_)) {}

FileWriter::~FileWriter() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileWriter::Write(std::string_view data) {
  while (!data.empty()) {
    const ssize_t count = ::write(fd_.get(), data.data(), data.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) ThrowErrno("cannot write " + path_, errno);
    bytes_ += count;
    data.remove_prefix(static_cast<size_t>(count));
  }
}

void FileWriter::Commit(bool waits_for_disk) {
  // On network file systems, close() may report the error of an earlier write.
  if ((waits_for_disk && ::fsync(fd_.get()) != 0) || ::close(fd_.Release()) != 0 ||
      ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    ThrowErrno("cannot write " + path_, errno);
  }
  temporary_.clear();
  if (waits_for_disk) SyncFolder(std::filesystem::path(path_).parent_path().string());
}

void SyncFolder(const std::string& folder) {
  const UniqueFd fd(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

}  // namespace dsat
