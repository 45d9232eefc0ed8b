// What gRPC's threads say to a loop's thread: a queue with a file descriptor to poll.
#ifndef DSAT_SEARCHER_EVENT_QUEUE_H_
#define DSAT_SEARCHER_EVENT_QUEUE_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace dsat {

// Unbounded, first in, first out. Push and Close may be called from any thread, Drain from one.
template <typename Event>
class EventQueue {
 public:
  EventQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_.get() < 0) ThrowErrno("eventfd", errno);
  }

  // Becomes readable when there is something to drain.
  int fd() const { return fd_.get(); }

  // False if the queue is closed; the event is then dropped.
  bool Push(Event event) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      events_.push_back(std::move(event));
    }
    const uint64_t one = 1;
    // Cannot fail in a way that matters: a full counter is readable, too.
    [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof(one));
    return true;
  }

  // All events pushed so far; does not block.
  std::vector<Event> Drain() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(fd_.get(), &count, sizeof(count));
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

  // Drops what is queued and refuses more: nobody will drain again.
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

#endif  // DSAT_SEARCHER_EVENT_QUEUE_H_
