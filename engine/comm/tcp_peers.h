// The connections to the other ranks of a group on several hosts, and the detection of their
// failures.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "engine/comm/link.h"
#include "engine/comm/process_group.h"
#include "engine/comm/tcp_rendezvous.h"

namespace dsat::engine {

// Not thread-safe. After an Error all connections are closed, so that every peer gets an Error,
// too.
class TcpPeers {
 public:
  using Clock = std::chrono::steady_clock;

  // Connects all pairs of members. A collective call, for which each member already listens, this
  // rank with `listener`, at its address in `membership`. Throws kUnavailable naming a member that
  // cannot be reached or has ended, kDeadlineExceeded naming those that did not connect.
  TcpPeers(Membership membership, UniqueFd listener, std::chrono::milliseconds timeout,
           Clock::time_point deadline);
  TcpPeers(const TcpPeers&) = delete;
  TcpPeers& operator=(const TcpPeers&) = delete;
  // Leaves the group: peers that wait for this rank get an Error.
  ~TcpPeers();

  const Membership& membership() const { return membership_; }
  // The links of collectives, of messages to the peer and of messages from it. REQUIRES: another
  // rank.
  Link& collectives(int peer) { return connections_[static_cast<size_t>(peer)].collectives; }
  Link& outgoing(int peer) { return connections_[static_cast<size_t>(peer)].outgoing; }
  Link& incoming(int peer) { return connections_[static_cast<size_t>(peer)].incoming; }

  // Sends and receives on the links of collectives, or on both links of messages with one peer,
  // until `done` is true. Throws kUnavailable if a peer from or to which data is missing has ended
  // or left, kDeadlineExceeded naming those peers if no data has moved for the time-out. `call` is
  // for messages. After a connection is lost, data that has already been sent is received first; if
  // `done` is then still false, `look` is called, which may throw an Error that explains the loss.
  void MoveCollectives(const Call& call, const std::function<bool()>& done,
                       const std::function<void()>& look = nullptr);
  void MoveMessages(const Call& call, int peer, const std::function<bool()>& done);

  // Throws kUnavailable, with the message of the first failure, if the group has failed.
  void CheckNotBroken(const std::string& call) const;
  // Throws kUnavailable if the group has failed or the peer is known to have ended or left.
  void CheckHere(const std::string& call, int peer);
  // As ProcessGroup::CheckPeers.
  void CheckPeers(const std::string& call, int peer, Clock::time_point since);
  // Breaks the group, so that peers get an Error and every further call throws, and throws
  // `message`.
  [[noreturn]] void Fail(ErrorCode code, const std::string& message);

 private:
  class Mesh;

  // Collectives and the messages of either direction are separate, so that none of them waits for
  // another, and a message arrives even if its sender leaves without reading.
  struct Connections {
    Link collectives;
    Link outgoing;  // Messages to the peer, which sends nothing back but its goodbye message.
    Link incoming;
    std::string departure;  // "has left the group" or "has ended"; "" while it is connected.
  };

  // As MoveCollectives over `links` to `peers`, one each.
  void Move(const Call& call, std::span<Link* const> links, std::span<const int> peers,
            const std::function<bool()>& done, const std::function<void()>& look);
  static void ReceiveWhatComes(std::span<Link* const> links);
  bool HasGone(int peer);
  std::string HowItWent(int peer, const Link& lost);
  void Leave();

  Membership membership_;
  std::chrono::milliseconds timeout_;
  std::vector<Connections> connections_;  // By rank; not used for this rank.
  std::vector<int> others_;               // The other ranks.
  std::vector<Link*> to_others_;
  std::string cause_;  // Why the group has failed; "" while it has not.
};

}  // namespace dsat::engine
