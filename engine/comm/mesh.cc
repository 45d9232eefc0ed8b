// The connections between the ranks of a group on several hosts. Of two ranks, the higher one opens
// the connection for collectives, and each sender the one for its messages.
#include "engine/comm/mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/comm/acceptor.h"

namespace dsat::engine {
namespace {

using Clock = std::chrono::steady_clock;

// How often the peers are checked while some are awaited.
constexpr std::chrono::milliseconds kWatchPeriod{50};

class Mesh {
 public:
  Mesh(const Membership& membership, Clock::time_point deadline)
      : membership_(membership), deadline_(deadline), sockets_(membership.members.size()) {}

  // Does not wait for peers: the kernel accepts connections to a listener and buffers their data.
  void ConnectToAll() {
    for (int step = 1; step < membership_.size(); ++step) {
      const int peer = (membership_.rank + step) % membership_.size();
      PeerSockets& sockets = sockets_[static_cast<size_t>(peer)];
      sockets.outgoing = Connect(peer, Hello::Purpose::kMessages);
      if (peer < membership_.rank)
        sockets.collectives = Connect(peer, Hello::Purpose::kCollectives);
    }
  }

  void AcceptAll(UniqueFd listener) {
    Acceptor acceptor(std::move(listener));
    while (!Missing().empty()) {
      if (auto arrival = acceptor.Next(std::min(deadline_, Clock::now() + kWatchPeriod))) {
        Admit(std::move(*arrival));
        continue;
      }
      CheckPeers();
      if (Clock::now() < deadline_) continue;
      std::string missing;
      for (const int peer : Missing())
        missing += (missing.empty() ? "" : ", ") + membership_.Describe(peer);
      Throw(ErrorCode::kDeadlineExceeded, "rank {} in join: {} did not connect in time",
            membership_.rank, missing);
    }
  }

  std::vector<PeerSockets> Take() { return std::move(sockets_); }

 private:
  UniqueFd Connect(int peer, Hello::Purpose purpose) const {
    const SocketAddress& address = membership_.members[static_cast<size_t>(peer)].address;
    const Hello hello = {.token = membership_.token,
                         .purpose = purpose,
                         .size = membership_.size(),
                         .rank = membership_.rank,
                         .pid = getpid()};
    UniqueFd fd = ConnectTo(address, deadline_);
    // The buffer of a new connection has room for the hello.
    if (!fd || send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
      Throw(ErrorCode::kUnavailable, "rank {} in join: {} cannot be reached at {}: {}",
            membership_.rank, membership_.Describe(peer), address.ToString(), std::strerror(errno));
    }
    Tune(fd.get());
    return fd;
  }

  void Admit(Acceptor::Arrival arrival) {
    const Hello& hello = arrival.hello;
    const bool is_member = hello.token == membership_.token && hello.size == membership_.size() &&
                           hello.rank >= 0 && hello.rank < membership_.size() &&
                           hello.rank != membership_.rank;
    if (!is_member || hello.purpose == Hello::Purpose::kJoin) return;
    PeerSockets& sockets = sockets_[static_cast<size_t>(hello.rank)];
    UniqueFd& place =
        hello.purpose == Hello::Purpose::kMessages ? sockets.incoming : sockets.collectives;
    if (place) return;
    Tune(arrival.fd.get());
    place = std::move(arrival.fd);
  }

  // A peer that has given up has closed its listener and the connections that it had not accepted.
  void CheckPeers() const {
    for (const int peer : Missing()) {
      pollfd poll_fd{sockets_[static_cast<size_t>(peer)].outgoing.get(), POLLRDHUP, 0};
      if (poll(&poll_fd, 1, 0) != 1) continue;
      Throw(ErrorCode::kUnavailable, "rank {} in join: {} has ended", membership_.rank,
            membership_.Describe(peer));
    }
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int peer = 0; peer < membership_.size(); ++peer) {
      const PeerSockets& sockets = sockets_[static_cast<size_t>(peer)];
      const bool is_here = sockets.incoming && sockets.collectives;
      if (peer != membership_.rank && !is_here) missing.push_back(peer);
    }
    return missing;
  }

  const Membership& membership_;
  Clock::time_point deadline_;
  std::vector<PeerSockets> sockets_;
};

}  // namespace

std::vector<PeerSockets> ConnectMembers(const Membership& membership, UniqueFd listener,
                                        Clock::time_point deadline) {
  Mesh mesh(membership, deadline);
  mesh.ConnectToAll();
  mesh.AcceptAll(std::move(listener));
  return mesh.Take();
}

}  // namespace dsat::engine
