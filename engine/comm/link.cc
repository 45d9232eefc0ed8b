// One connection of a group, with the data that is being sent and received.
#include "engine/comm/link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "base/error.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxSpans = 8;  // Per system call.
constexpr int kMaxSleepMs = 60'000;

bool IsTransient(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

void Link::Send(const void* data, int64_t bytes) {
  if (bytes == 0) return;
  const std::span<const char> more(static_cast<const char*>(data), static_cast<size_t>(bytes));
  unsent_bytes_ += bytes;
  if (!outgoing_.empty() && outgoing_.back().data() + outgoing_.back().size() == more.data()) {
    outgoing_.back() = {outgoing_.back().data(), outgoing_.back().size() + more.size()};
  } else {
    outgoing_.push_back(more);
  }
}

void Link::Receive(void* data, int64_t bytes) {
  DSAT_CHECK(incoming_.empty());
  incoming_ = {static_cast<char*>(data), static_cast<size_t>(bytes)};
}

// True if data was sent.
bool Link::MoveOut() {
  std::array<iovec, kMaxSpans> spans;
  const size_t num_spans = std::min(kMaxSpans, outgoing_.size());
  for (size_t i = 0; i < num_spans; ++i)
    spans[i] = {const_cast<char*>(outgoing_[i].data()), outgoing_[i].size()};
  msghdr message{};
  message.msg_iov = spans.data();
  message.msg_iovlen = num_spans;
  const ssize_t sent = sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (IsTransient(errno)) return false;
    error_ = errno;
    can_send_ = false;
    return false;
  }
  unsent_bytes_ -= sent;
  for (auto left = static_cast<size_t>(sent); left > 0;) {
    const size_t count = std::min(left, outgoing_.front().size());
    outgoing_.front() = outgoing_.front().subspan(count);
    if (outgoing_.front().empty()) outgoing_.pop_front();
    left -= count;
  }
  return sent > 0;
}

Link::Outcome Link::MoveIn() {
  const ssize_t received = recv(fd_.get(), incoming_.data(), incoming_.size(), MSG_DONTWAIT);
  if (received > 0) {
    incoming_ = incoming_.subspan(static_cast<size_t>(received));
    return Outcome::kMoved;
  }
  if (received < 0 && IsTransient(errno)) return Outcome::kIdle;
  if (received < 0) error_ = errno;
  return Outcome::kLost;
}

Link::Outcome Link::Move() {
  const bool has_sent = unsent_bytes_ > 0 && can_send_ && MoveOut();
  // A peer may have sent the reason, or all awaited data, before it closed the connection.
  if (is_receiving()) {
    const Outcome outcome = MoveIn();
    if (outcome != Outcome::kIdle) return outcome;
  } else if (!can_send_ && unsent_bytes_ > 0) {
    return Outcome::kLost;
  }
  return has_sent ? Outcome::kMoved : Outcome::kIdle;
}

short Link::events() const {
  int events = 0;
  if (is_receiving()) events |= POLLIN;
  if (unsent_bytes_ > 0 && can_send_) events |= POLLOUT | POLLRDHUP;
  return static_cast<short>(events);
}

// A peer that closes the connection does not read the bytes that remain to be sent.
bool Link::is_lost_by(short revents) const {
  return !is_receiving() && unsent_bytes_ > 0 && (revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Link::Close() {
  fd_.Reset();
  outgoing_.clear();
  unsent_bytes_ = 0;
  incoming_ = {};
}

Moved MoveUntil(std::span<Link* const> links, const std::function<bool()>& done,
                milliseconds patience, size_t* lost) {
  std::vector<pollfd> poll_fds(links.size());
  auto deadline = Clock::now() + patience;
  while (!done()) {
    bool has_moved = false;
    bool is_lost = false;
    const auto lose = [&](size_t i) {
      if (!std::exchange(is_lost, true)) *lost = i;
    };
    for (size_t i = 0; i < links.size(); ++i) {
      const Link::Outcome outcome = links[i]->Move();
      has_moved |= outcome == Link::Outcome::kMoved;
      if (outcome == Link::Outcome::kLost || links[i]->is_lost_by(poll_fds[i].revents)) lose(i);
    }
    if (has_moved) {
      deadline = Clock::now() + patience;
      continue;
    }
    if (is_lost) return Moved::kLost;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Moved::kLate;
    for (size_t i = 0; i < links.size(); ++i) {
      // Links without data to move are ignored (a negative fd), because poll would return when they
      // close.
      poll_fds[i] = {links[i]->is_busy() ? links[i]->fd() : -1, links[i]->events(), 0};
    }
    poll(poll_fds.data(), poll_fds.size(),
         static_cast<int>(std::min<int64_t>(left.count(), kMaxSleepMs)));
  }
  return Moved::kAll;
}

}  // namespace dsat::engine
