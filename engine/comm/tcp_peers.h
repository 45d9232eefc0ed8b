// The other ranks of a group on several hosts: connections to them, and the watch over them.
#ifndef DSAT_ENGINE_COMM_TCP_PEERS_H_
#define DSAT_ENGINE_COMM_TCP_PEERS_H_

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/comm/call.h"
#include "engine/comm/link.h"
#include "engine/comm/mesh.h"

namespace dsat::engine {

// Not thread-safe. After an Error all connections are closed: every peer gets an Error, too.
class TcpPeers {
 public:
  using Clock = std::chrono::steady_clock;

  TcpPeers(Roster roster, std::vector<PeerSockets> sockets, std::chrono::milliseconds timeout);
  TcpPeers(const TcpPeers&) = delete;
  TcpPeers& operator=(const TcpPeers&) = delete;
  // Leaves: peers that wait for this rank get an Error.
  ~TcpPeers();

  const Roster& roster() const { return roster_; }
  // Where collectives go, messages to the peer, and those from it. REQUIRES: another rank.
  Link& collectives(int peer) { return connections_[static_cast<size_t>(peer)].collectives; }
  Link& outgoing(int peer) { return connections_[static_cast<size_t>(peer)].outgoing; }
  Link& incoming(int peer) { return connections_[static_cast<size_t>(peer)].incoming; }

  // Moves over all collectives, or over both ways of messages with one peer, until `done`. Throws
  // kUnavailable if a peer with something to move has ended or left, kDeadlineExceeded naming those
  // peers if nothing has moved for the time-out. `call` is for messages. If there is a `look`, and
  // always for messages, a loss counts only when what others, or the peer, had sent has come and is
  // not what was wanted; `look` may then throw what explains the loss.
  void MoveCollectives(const Call& call, const std::function<bool()>& done,
                       const std::function<void()>& look = nullptr);
  void MoveMessages(const Call& call, int peer, const std::function<bool()>& done);

  // Throws kUnavailable if the group has failed.
  void CheckNotBroken(const std::string& call) const;
  // Throws kUnavailable if it has, or if the peer is known to have ended or left.
  void CheckHere(const std::string& call, int peer);
  // As ProcessGroup::CheckPeers.
  void CheckPeers(const std::string& call, int peer, Clock::time_point since);
  // Breaks the group: peers get an Error, every further call throws. Throws `message` itself.
  [[noreturn]] void Fail(ErrorCode code, const std::string& message);

 private:
  struct Connections {
    Link collectives;
    Link outgoing;
    Link incoming;
    std::string farewell;  // "has left the group", "has ended"; "": as far as known it is here.
  };

  // Over links with `peers`, one each.
  void Move(const Call& call, std::span<Link* const> links, std::span<const int> peers,
            const std::function<bool()>& done, const std::function<void()>& look);
  static void ReceiveWhatComes(std::span<Link* const> links);
  bool HasGone(int peer);
  std::string HowItWent(int peer, const Link& lost);
  void Leave();

  Roster roster_;
  std::chrono::milliseconds timeout_;
  std::vector<Connections> connections_;  // By rank; the own ones are not used.
  std::vector<int> others_;               // Ranks, and their links for collectives.
  std::vector<Link*> to_others_;
  bool is_broken_ = false;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_TCP_PEERS_H_
