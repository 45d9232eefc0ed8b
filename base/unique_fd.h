// The sole owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace dsat {

// Move-only; closes the descriptor when it is destroyed.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Reset(); }

  explicit operator bool() const { return fd_ >= 0; }
  // The descriptor, or -1.
  int get() const { return fd_; }
  // Gives up ownership and returns the open descriptor.
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

}  // namespace dsat
