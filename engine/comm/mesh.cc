// The connections between the ranks of a group on several hosts: of each two, the higher rank makes
// the one for collectives, and who sends a message the one for it.
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
#include "engine/comm/reception.h"

namespace dsat::engine {
namespace {

using Clock = std::chrono::steady_clock;

// How often the peers are looked at while some are awaited.
constexpr std::chrono::milliseconds kWatchPeriod{50};

class Mesh {
 public:
  Mesh(const Roster& roster, Clock::time_point deadline)
      : roster_(roster), deadline_(deadline), sockets_(roster.members.size()) {}

  void ConnectToAll();
  void AcceptAll(UniqueFd listener);
  std::vector<PeerSockets> Take() { return std::move(sockets_); }

 private:
  UniqueFd Connect(int peer, Hello::Purpose purpose) const;
  void Admit(Reception::Arrival arrival);
  void CheckPeers() const;
  std::vector<int> Missing() const;

  const Roster& roster_;
  Clock::time_point deadline_;
  std::vector<PeerSockets> sockets_;
};

// Needs no peer to run: the kernel takes connections to a listener, and what is said on them.
void Mesh::ConnectToAll() {
  for (int step = 1; step < roster_.size(); ++step) {
    const int peer = (roster_.rank + step) % roster_.size();
    PeerSockets& sockets = sockets_[static_cast<size_t>(peer)];
    sockets.outgoing = Connect(peer, Hello::Purpose::kMessages);
    if (peer < roster_.rank) sockets.collectives = Connect(peer, Hello::Purpose::kCollectives);
  }
}

UniqueFd Mesh::Connect(int peer, Hello::Purpose purpose) const {
  const SocketAddress& address = roster_.members[static_cast<size_t>(peer)].address;
  const Hello hello = {.proof = roster_.proof,
                       .purpose = purpose,
                       .size = roster_.size(),
                       .rank = roster_.rank,
                       .pid = getpid()};
  UniqueFd fd = ConnectTo(address, deadline_);
  // The buffer of a new connection has room for it.
  if (!fd || send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
    Throw(ErrorCode::kUnavailable, "rank {} in join: {} cannot be reached at {}: {}", roster_.rank,
          roster_.Describe(peer), address.ToString(), std::strerror(errno));
  }
  Tune(fd.get());
  return fd;
}

std::vector<int> Mesh::Missing() const {
  std::vector<int> missing;
  for (int peer = 0; peer < roster_.size(); ++peer) {
    const PeerSockets& sockets = sockets_[static_cast<size_t>(peer)];
    const bool is_here = sockets.incoming && sockets.collectives;
    if (peer != roster_.rank && !is_here) missing.push_back(peer);
  }
  return missing;
}

void Mesh::AcceptAll(UniqueFd listener) {
  Reception reception(std::move(listener));
  while (!Missing().empty()) {
    if (auto arrival = reception.Next(std::min(deadline_, Clock::now() + kWatchPeriod))) {
      Admit(std::move(*arrival));
      continue;
    }
    CheckPeers();
    if (Clock::now() < deadline_) continue;
    std::string missing;
    for (const int peer : Missing())
      missing += (missing.empty() ? "" : ", ") + roster_.Describe(peer);
    Throw(ErrorCode::kDeadlineExceeded, "rank {} in join: {} did not connect in time", roster_.rank,
          missing);
  }
}

void Mesh::Admit(Reception::Arrival arrival) {
  const Hello& hello = arrival.hello;
  const bool is_member = hello.proof == roster_.proof && hello.size == roster_.size() &&
                         hello.rank >= 0 && hello.rank < roster_.size() &&
                         hello.rank != roster_.rank;
  if (!is_member || hello.purpose == Hello::Purpose::kJoin) return;
  PeerSockets& sockets = sockets_[static_cast<size_t>(hello.rank)];
  UniqueFd& place =
      hello.purpose == Hello::Purpose::kMessages ? sockets.incoming : sockets.collectives;
  if (place) return;
  Tune(arrival.fd.get());
  place = std::move(arrival.fd);
}

// A peer that gave up has closed its listener, and with it what nobody accepted.
void Mesh::CheckPeers() const {
  for (const int peer : Missing()) {
    pollfd poll_fd{sockets_[static_cast<size_t>(peer)].outgoing.get(), POLLRDHUP, 0};
    if (poll(&poll_fd, 1, 0) != 1) continue;
    Throw(ErrorCode::kUnavailable, "rank {} in join: {} has ended", roster_.rank,
          roster_.Describe(peer));
  }
}

}  // namespace

std::vector<PeerSockets> ConnectMembers(const Roster& roster, UniqueFd listener,
                                        Clock::time_point deadline) {
  Mesh mesh(roster, deadline);
  mesh.ConnectToAll();
  mesh.AcceptAll(std::move(listener));
  return mesh.Take();
}

}  // namespace dsat::engine
