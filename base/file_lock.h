// Advisory locks on files, which end with their process.
#pragma once

#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace dsat {

// Held from Acquire to destruction. The lock is flock on a file that exists for it, so that it is
// released however the process ends. The destructor removes the file; a file left by a killed
// process is reused. Not thread-safe.
class FileLock {
 public:
  // Throws if the file cannot be opened, and kFailedPrecondition if another process holds the lock:
  // `taken`, such as "the folder is in use by", and the id of that process.
  static FileLock Acquire(const std::string& path, const std::string& taken);
  // Whether a process holds a lock on the file, also by another program.
  static bool IsHeld(const std::string& path);

  FileLock(FileLock&& other) noexcept
      : path_(std::exchange(other.path_, "")), fd_(std::move(other.fd_)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileLock();

 private:
  FileLock(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;  // "": nothing is held.
  UniqueFd fd_;
};

}  // namespace dsat
