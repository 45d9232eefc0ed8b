// A text file that grows by lines.
#include "engine/worker/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace dsat::engine {

LineFile::LineFile(std::string path, const std::function<bool(const std::string& line)>& keep)
    : path_(std::move(path)) {
  if (std::filesystem::exists(path_)) {
    const std::string before = ReadFile(path_);
    std::string kept;
    std::istringstream lines(before);
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      if (keep(line)) kept += line + "\n";
    }
    if (kept != before) WriteFileAtomic(path_, kept);
    empty_ = kept.empty();
  }
  file_ = UniqueFd(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file_) ThrowErrno(path_, errno);
}

void LineFile::Add(const std::string& line) {
  const std::string text = line + "\n";
  const ssize_t written = write(file_.get(), text.data(), text.size());
  if (written < 0) ThrowErrno(path_, errno);
  if (written < std::ssize(text)) ThrowErrno(path_, ENOSPC);
  empty_ = false;
}

void LineFile::Sync() {
  if (fdatasync(file_.get()) != 0) ThrowErrno(path_, errno);
}

}  // namespace dsat::engine
