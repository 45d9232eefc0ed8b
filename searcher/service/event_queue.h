// A queue from gRPC's threads to the thread of a loop, with a file descriptor for poll.
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace dsat {

// An unbounded FIFO queue. Push and Close may be called by any thread, Drain by one.
template <typename Event>
class EventQueue {
 public:
  EventQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_.get() < 0) ThrowErrno("eventfd", errno);
  }

  // Readable when there are events to drain.
  int fd() const { return fd_.get(); }

  // Returns false and drops the event if the queue is closed.
  bool Push(Event event) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      events_.push_back(std::move(event));
    }
    eventfd_write(fd_.get(), 1);  // A failure does not matter: a full counter is readable, too.
    return true;
  }

  // Returns all events pushed so far. Does not block.
  std::vector<Event> Drain() {
    eventfd_t count = 0;
    eventfd_read(fd_.get(), &count);
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

  // Drops the queued events and refuses new ones.
  void Close() {
    std::vector<Event> dropped;
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped = std::exchange(events_, {});
  }

 private:
  UniqueFd fd_;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<Event> events_;
};

}  // namespace dsat
