// Follows a growing log and records when its lines with a marker arrived.
#include "searcher/processes/line_stamper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace dsat {
namespace {

int64_t MonotonicNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

UniqueFd OpenOrThrow(const std::string& path, int flags) {
  UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (fd.get() < 0) ThrowErrno(path, errno);
  return fd;
}

}  // namespace

std::string StampsPath(const std::string& log_path) {
  return log_path + ".stamps";
}

LineStamper::LineStamper(const std::string& log_path, std::string marker)
    : marker_(std::move(marker)), inotify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  if (inotify_.get() < 0) ThrowErrno("inotify", errno);
  if (inotify_add_watch(inotify_.get(), log_path.c_str(), IN_MODIFY) < 0) {
    ThrowErrno("inotify: " + log_path, errno);
  }
  log_ = OpenOrThrow(log_path, O_RDONLY);
  stamps_ = OpenOrThrow(StampsPath(log_path), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
}

void LineStamper::StampLine(std::string_view line, int64_t now_ns) {
  if (line.find(marker_) == std::string_view::npos) return;
  const std::string stamped = fmt::format("{} {}\n", now_ns, line);
  // If the disk is full, the stamps are lost and the trial's own times are used.
  [[maybe_unused]] const ssize_t n = write(stamps_.get(), stamped.data(), stamped.size());
}

void LineStamper::Follow() {
  char buffer[16384];
  while (read(inotify_.get(), buffer, sizeof(buffer)) > 0) {
  }
  ssize_t n = 0;
  while ((n = read(log_.get(), buffer, sizeof(buffer))) > 0) {
    const int64_t now_ns = MonotonicNs();
    partial_.append(buffer, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      StampLine(std::string_view(partial_).substr(begin, end - begin), now_ns);
    }
    partial_.erase(0, begin);
    // Text without line ends, such as a progress bar.
    if (partial_.size() > kMaxStampedLineBytes) {
      partial_.erase(0, partial_.size() - kMaxStampedLineBytes);
    }
  }
}

std::vector<StampedLine> ReadStamps(const std::string& stamps_path) {
  std::vector<StampedLine> stamps;
  std::ifstream file(stamps_path);
  StampedLine stamp;
  while (file >> stamp.time_ns && file.get() == ' ' && std::getline(file, stamp.line)) {
    if (!file.eof()) stamps.push_back(stamp);  // Otherwise the line is incomplete.
  }
  return stamps;
}

}  // namespace dsat
