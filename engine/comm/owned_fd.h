// A file descriptor with an owner.
#ifndef DSAT_ENGINE_COMM_OWNED_FD_H_
#define DSAT_ENGINE_COMM_OWNED_FD_H_

#include <unistd.h>

#include <utility>

namespace dsat::engine {

// Move-only; closed when it ends.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_OWNED_FD_H_
