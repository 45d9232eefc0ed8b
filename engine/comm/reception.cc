// Who comes to a listening socket, told from strangers.
#include "engine/comm/reception.h"

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

// A hello is sent as soon as the connection is there.
constexpr std::chrono::seconds kPatience{5};
// At a time; more wait in the kernel until these have spoken or been sent away.
constexpr size_t kMaxGuests = 256;

bool IsOwnTrouble(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ||
         error == EBADF || error == EINVAL || error == ENOTSOCK;
}

}  // namespace

std::optional<Reception::Arrival> Reception::Next(Clock::time_point deadline) {
  for (;;) {
    Accept();
    if (auto arrival = Listen()) return arrival;
    const auto now = Clock::now();
    if (now >= deadline) return std::nullopt;
    auto until = deadline;
    std::vector<pollfd> poll_fds;
    poll_fds.push_back({guests_.size() < kMaxGuests ? listener_.get() : -1, POLLIN, 0});
    for (const Guest& guest : guests_) {
      poll_fds.push_back({guest.link.fd(), POLLIN, 0});
      until = std::min(until, guest.deadline);
    }
    const auto left = std::chrono::ceil<milliseconds>(until - now);
    poll(poll_fds.data(), poll_fds.size(),
         static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
  }
}

void Reception::Accept() {
  while (guests_.size() < kMaxGuests) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && IsOwnTrouble(errno)) ThrowErrno("accepting connections of a process group", errno);
    if (!fd) return;  // Nobody else is there; or who was has gone.
    Guest& guest = guests_.emplace_back();
    guest.link = Link(std::move(fd));
    guest.link.Receive(&guest.hello, sizeof guest.hello);
    guest.deadline = Clock::now() + kPatience;
  }
}

// Reads what guests have said; the first who has said all of it.
std::optional<Reception::Arrival> Reception::Listen() {
  const auto now = Clock::now();
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    Link::Outcome outcome = Link::Outcome::kMoved;
    while (guest->link.is_receiving() && outcome == Link::Outcome::kMoved)
      outcome = guest->link.Move();
    if (!guest->link.is_receiving()) {
      Arrival arrival{guest->link.TakeFd(), guest->hello};
      guest = guests_.erase(guest);
      if (arrival.hello.magic == Hello::kMagic) return arrival;
    } else if (outcome == Link::Outcome::kLost || now >= guest->deadline) {
      guest = guests_.erase(guest);
    } else {
      ++guest;
    }
  }
  return std::nullopt;
}

}  // namespace dsat::engine
