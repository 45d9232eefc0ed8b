// One connection of a group, and what is on its way over it.
#ifndef DSAT_ENGINE_COMM_LINK_H_
#define DSAT_ENGINE_COMM_LINK_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>

#include "base/unique_fd.h"

namespace dsat::engine {

// Sends and receives at the same time, never waiting. Memory is borrowed until the bytes have
// moved. Not thread-safe.
class Link {
 public:
  Link() = default;
  // `fd` does not block.
  explicit Link(UniqueFd fd) : fd_(std::move(fd)) {}

  // What goes next, after all before.
  void Send(const void* data, int64_t bytes);
  // What comes next. REQUIRES: nothing is awaited.
  void Receive(void* data, int64_t bytes);
  int64_t unsent_bytes() const { return unsent_bytes_; }
  bool is_receiving() const { return !incoming_.empty(); }
  bool is_busy() const { return is_receiving() || unsent_bytes_ > 0; }

  enum class Outcome { kIdle, kMoved, kLost };
  // Moves what can move now. kLost: the other side has closed, or the connection is broken, and
  // something is still to move. What had come before is received first.
  Outcome Move();
  // What poll is to wait for, and what Move makes of its answer.
  short events() const;
  bool is_lost_by(short revents) const;

  int fd() const { return fd_.get(); }
  // The errno of the system call that failed; 0 if none did.
  int error() const { return error_; }
  // Drops what is on its way.
  void Close();
  // Gives the connection up, open.
  UniqueFd TakeFd() { return std::move(fd_); }

 private:
  bool MoveOut();
  Outcome MoveIn();

  UniqueFd fd_;
  std::deque<std::span<const char>> outgoing_;
  int64_t unsent_bytes_ = 0;
  std::span<char> incoming_;
  bool can_send_ = true;
  int error_ = 0;
};

enum class Moved { kAll, kLost, kLate };

// Moves over `links` until `done`. kLost: over one of them, `lost`, nothing will move any more, and
// over the others nothing does now; kLate: nothing has moved for `patience`.
Moved MoveUntil(std::span<Link* const> links, const std::function<bool()>& done,
                std::chrono::milliseconds patience, size_t* lost);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_LINK_H_
