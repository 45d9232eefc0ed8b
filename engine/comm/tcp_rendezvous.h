// The rendezvous of ranks on several hosts: each learns the addresses of all others.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/process_group.h"
#include "engine/comm/socket.h"

namespace dsat::engine {

struct Member {
  SocketAddress address;  // Where it listens, as seen from this rank.
  int32_t pid = 0;
};

// The members of a group.
struct Membership {
  int rank = 0;
  std::vector<Member> members;  // By rank.
  uint64_t token = 0;           // A secret of the members.

  int size() const { return static_cast<int>(members.size()); }
  // "rank 2 (10.0.0.3, pid 123)".
  std::string Describe(int rank) const;
};

struct RendezvousResult {
  Membership membership;
  UniqueFd listener;  // At this rank's address.
};

// Rank 0 listens at the master's address. The other ranks connect to it, send their rank and the
// port at which they listen, and receive the addresses of all ranks. Throws as MakeTcpGroup.
// REQUIRES: at least two ranks.
RendezvousResult JoinAtMaster(const TcpGroupArgs& args,
                              std::chrono::steady_clock::time_point deadline);

}  // namespace dsat::engine
