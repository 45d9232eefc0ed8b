// The connections to the other ranks of a group on several hosts, and the detection of their
// failures.
//
// A rank that leaves sends a goodbye message on the connection from which it receives messages. No
// other data goes in that direction, so that a peer sees at once that the rank has left and did not
// fail. A process that ends closes its connections without a goodbye.
#include "engine/comm/tcp_peers.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "engine/comm/acceptor.h"
#include "engine/comm/socket.h"

namespace dsat::engine {
namespace {

constexpr char kGoodbye = 'x';
// How long the end of another connection of the same process may take to arrive.
constexpr std::chrono::milliseconds kGoodbyeDelay{500};
// How often the peers are checked while some are awaited.
constexpr std::chrono::milliseconds kWatchPeriod{50};

}  // namespace

// Connects all pairs of members. Of two ranks, the higher one opens the connection for collectives,
// and each sender the one for its messages.
class TcpPeers::Mesh {
 public:
  Mesh(const Membership& membership, Clock::time_point deadline,
       std::vector<Connections>& connections)
      : membership_(membership), deadline_(deadline), connections_(connections) {}

  // Does not wait for peers: the kernel accepts connections to a listener and buffers their data.
  void ConnectToAll() {
    for (int step = 1; step < membership_.size(); ++step) {
      const int peer = (membership_.rank + step) % membership_.size();
      Connections& connections = connections_[static_cast<size_t>(peer)];
      connections.outgoing = Connect(peer, Hello::Purpose::kMessages);
      if (peer < membership_.rank)
        connections.collectives = Connect(peer, Hello::Purpose::kCollectives);
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

 private:
  Link Connect(int peer, Hello::Purpose purpose) const {
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
    return Link(std::move(fd));
  }

  void Admit(Acceptor::Arrival arrival) {
    const Hello& hello = arrival.hello;
    const bool is_member = hello.token == membership_.token && hello.size == membership_.size() &&
                           hello.rank >= 0 && hello.rank < membership_.size() &&
                           hello.rank != membership_.rank;
    if (!is_member || hello.purpose == Hello::Purpose::kJoin) return;
    Connections& connections = connections_[static_cast<size_t>(hello.rank)];
    Link& link =
        hello.purpose == Hello::Purpose::kMessages ? connections.incoming : connections.collectives;
    if (link.fd() >= 0) return;
    Tune(arrival.link.fd());
    link = std::move(arrival.link);
  }

  // A peer that has given up has closed its listener and the connections that it had not accepted.
  void CheckPeers() const {
    for (const int peer : Missing()) {
      pollfd poll_fd{connections_[static_cast<size_t>(peer)].outgoing.fd(), POLLRDHUP, 0};
      if (poll(&poll_fd, 1, 0) != 1) continue;
      Throw(ErrorCode::kUnavailable, "rank {} in join: {} has ended", membership_.rank,
            membership_.Describe(peer));
    }
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int peer = 0; peer < membership_.size(); ++peer) {
      const Connections& connections = connections_[static_cast<size_t>(peer)];
      const bool is_here = connections.incoming.fd() >= 0 && connections.collectives.fd() >= 0;
      if (peer != membership_.rank && !is_here) missing.push_back(peer);
    }
    return missing;
  }

  const Membership& membership_;
  Clock::time_point deadline_;
  std::vector<Connections>& connections_;
};

TcpPeers::TcpPeers(Membership membership, UniqueFd listener, std::chrono::milliseconds timeout,
                   Clock::time_point deadline)
    : membership_(std::move(membership)),
      timeout_(timeout),
      connections_(membership_.members.size()) {
  Mesh mesh(membership_, deadline, connections_);
  mesh.ConnectToAll();
  mesh.AcceptAll(std::move(listener));
  for (int peer = 0; peer < membership_.size(); ++peer) {
    if (peer == membership_.rank) continue;
    others_.push_back(peer);
    to_others_.push_back(&collectives(peer));
  }
}

TcpPeers::~TcpPeers() {
  Leave();
}

void TcpPeers::Leave() {
  for (const int peer : others_) {
    const int fd = incoming(peer).fd();
    if (fd >= 0) send(fd, &kGoodbye, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  for (Connections& each : connections_) {
    each.collectives.Close();
    each.outgoing.Close();
    each.incoming.Close();
  }
}

void TcpPeers::Fail(ErrorCode code, const std::string& message) {
  if (cause_.empty()) cause_ = message;
  Leave();
  throw Error(code, message);
}

void TcpPeers::CheckNotBroken(const std::string& call) const {
  if (cause_.empty()) return;
  Throw(ErrorCode::kUnavailable, "rank {} in {}: the process group has failed before: {}",
        membership_.rank, call, cause_);
}

void TcpPeers::MoveCollectives(const Call& call, const std::function<bool()>& done,
                               const std::function<void()>& look) {
  Move(call, to_others_, others_, done, look);
}

void TcpPeers::MoveMessages(const Call& call, int peer, const std::function<bool()>& done) {
  Link* const links[] = {&outgoing(peer), &incoming(peer)};
  const int peers[] = {peer, peer};
  Move(call, links, peers, done, [] {});
}

void TcpPeers::Move(const Call& call, std::span<Link* const> links, std::span<const int> peers,
                    const std::function<bool()>& done, const std::function<void()>& look) {
  size_t lost = 0;
  const Moved moved = MoveUntil(links, done, timeout_, &lost);
  if (moved == Moved::kAll) return;
  if (moved == Moved::kLost && look) {
    ReceiveWhatComes(links);
    if (done()) return;
    look();
  }
  if (moved == Moved::kLost) {
    const std::string how = HowItWent(peers[lost], *links[lost]);
    Fail(ErrorCode::kUnavailable,
         fmt::format("rank {} in {}: {} {}", membership_.rank, call.ToString(),
                     membership_.Describe(peers[lost]), how));
  }
  std::set<int> awaited;  // A set, because a peer may have two links.
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i]->is_busy()) awaited.insert(peers[i]);
  }
  std::string missing;
  for (const int peer : awaited)
    missing += (missing.empty() ? "" : ", ") + membership_.Describe(peer);
  Fail(ErrorCode::kDeadlineExceeded,
       fmt::format("rank {} in {}: {} did not arrive within {} ms", membership_.rank,
                   call.ToString(), missing, timeout_.count()));
}

// Receives what a peer has sent on other connections before it left.
void TcpPeers::ReceiveWhatComes(std::span<Link* const> links) {
  std::vector<Link*> receiving;
  std::copy_if(links.begin(), links.end(), std::back_inserter(receiving),
               [](const Link* link) { return link->is_receiving(); });
  const auto have_received = [&] {
    return std::none_of(receiving.begin(), receiving.end(),
                        [](const Link* link) { return link->is_receiving(); });
  };
  size_t lost = 0;
  MoveUntil(receiving, have_received, kGoodbyeDelay, &lost);
}

bool TcpPeers::HasGone(int peer) {
  Connections& connections = connections_[static_cast<size_t>(peer)];
  if (!connections.departure.empty()) return true;
  char byte = 0;
  const ssize_t received = recv(connections.outgoing.fd(), &byte, 1, MSG_DONTWAIT);
  if (received > 0) {
    connections.departure = "has left the group";
  } else if (received == 0 || errno == ECONNRESET || errno == EPIPE) {
    connections.departure = "has ended";
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    connections.departure = fmt::format("cannot be reached: {}", std::strerror(errno));
  }
  return !connections.departure.empty();
}

// How a peer whose connection `lost` has ended has left.
std::string TcpPeers::HowItWent(int peer, const Link& lost) {
  WaitFor(outgoing(peer).fd(), POLLIN | POLLRDHUP, Clock::now() + kGoodbyeDelay);
  if (HasGone(peer)) return connections_[static_cast<size_t>(peer)].departure;
  return fmt::format("cannot be reached: {}",
                     lost.error() == 0 ? "connection closed" : std::strerror(lost.error()));
}

void TcpPeers::CheckHere(const std::string& call, int peer) {
  CheckNotBroken(call);
  if (!HasGone(peer)) return;
  Fail(ErrorCode::kUnavailable,
       fmt::format("rank {} in {}: {} {}", membership_.rank, call, membership_.Describe(peer),
                   connections_[static_cast<size_t>(peer)].departure));
}

void TcpPeers::CheckPeers(const std::string& call, int peer, Clock::time_point since) {
  CheckNotBroken(call);
  for (const int other : others_) {
    if (peer < 0 || other == peer) CheckHere(call, other);
  }
  if (Clock::now() - since < timeout_) return;
  Fail(ErrorCode::kDeadlineExceeded, fmt::format("rank {} in {}: not done within {} ms",
                                                 membership_.rank, call, timeout_.count()));
}

}  // namespace dsat::engine
