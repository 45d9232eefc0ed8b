// One connection of a group, with the data that is being sent and received.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>

#include "base/unique_fd.h"

namespace dsat::engine {

// Sends and receives at the same time without blocking. Memory must stay valid until its bytes have
// been sent or received. Not thread-safe.
class Link {
 public:
  Link() = default;
  // `fd` is non-blocking.
  explicit Link(UniqueFd fd) : fd_(std::move(fd)) {}

  // Queues data to be sent.
  void Send(const void* data, int64_t bytes);
  // Sets the memory for the next data received. REQUIRES: !is_receiving().
  void Receive(void* data, int64_t bytes);
  int64_t unsent_bytes() const { return unsent_bytes_; }
  bool is_receiving() const { return !incoming_.empty(); }
  bool is_busy() const { return is_receiving() || unsent_bytes_ > 0; }

  enum class Outcome { kIdle, kMoved, kLost };
  // Sends and receives what is possible now. kLost: the peer has closed the connection, or it is
  // broken, and data remains to be sent or received. Data that arrived before is received first.
  Outcome Move();
  // The events for poll, and whether poll's result means that the connection is lost.
  short events() const;
  bool is_lost_by(short revents) const;

  int fd() const { return fd_.get(); }
  // The errno of the system call that failed; 0 if none did.
  int error() const { return error_; }
  // Closes the connection and drops unsent data.
  void Close();

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

// Sends and receives on `links` until `done` is true. kLost: link `lost` is broken or closed, and
// no data can be moved on the others now. kLate: no data has moved for `patience`.
Moved MoveUntil(std::span<Link* const> links, const std::function<bool()>& done,
                std::chrono::milliseconds patience, size_t* lost);

}  // namespace dsat::engine
