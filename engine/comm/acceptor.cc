// Accepts the connections of a group's members and rejects all others.
#include "engine/comm/acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/error.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long a connection may take to send its hello, which members send at once.
constexpr std::chrono::seconds kPatience{5};
// Pending connections at a time; more wait in the kernel.
constexpr size_t kMaxPending = 256;

bool IsOwnFailure(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ||
         error == EBADF || error == EINVAL || error == ENOTSOCK;
}

}  // namespace

std::optional<Acceptor::Arrival> Acceptor::Next(Clock::time_point deadline) {
  for (;;) {
    Accept();
    if (auto arrival = Listen()) return arrival;
    const auto now = Clock::now();
    if (now >= deadline) return std::nullopt;
    auto until = deadline;
    std::vector<pollfd> poll_fds;
    poll_fds.push_back({pending_.size() < kMaxPending ? listener_.get() : -1, POLLIN, 0});
    for (const Arrival& pending : pending_) {
      poll_fds.push_back({pending.link.fd(), POLLIN, 0});
      until = std::min(until, pending.deadline);
    }
    const auto left = std::chrono::ceil<milliseconds>(until - now);
    poll(poll_fds.data(), poll_fds.size(),
         static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
  }
}

void Acceptor::Accept() {
  while (pending_.size() < kMaxPending) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && IsOwnFailure(errno))
      ThrowErrno("cannot accept connections of a process group", errno);
    if (!fd) return;  // No more connections, or one that has been closed again.
    Arrival& pending = pending_.emplace_back();
    pending.link = Link(std::move(fd));
    pending.link.Receive(&pending.hello, sizeof pending.hello);
    pending.deadline = Clock::now() + kPatience;
  }
}

// Reads from the pending connections and returns the first whose hello is complete.
std::optional<Acceptor::Arrival> Acceptor::Listen() {
  const auto now = Clock::now();
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    Link::Outcome outcome = Link::Outcome::kMoved;
    while (pending->link.is_receiving() && outcome == Link::Outcome::kMoved)
      outcome = pending->link.Move();
    if (!pending->link.is_receiving()) {
      Arrival arrival = std::move(*pending);
      pending = pending_.erase(pending);
      if (arrival.hello.magic == Hello::kMagic) return arrival;
    } else if (outcome == Link::Outcome::kLost || now >= pending->deadline) {
      pending = pending_.erase(pending);
    } else {
      ++pending;
    }
  }
  return std::nullopt;
}

}  // namespace dsat::engine
