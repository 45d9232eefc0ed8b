// How ranks on several hosts find each other.
#ifndef DSAT_ENGINE_COMM_MEETING_H_
#define DSAT_ENGINE_COMM_MEETING_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/process_group.h"
#include "engine/comm/socket.h"

namespace dsat::engine {

struct Member {
  SocketAddress address;  // Where it listens, as this rank reaches it.
  int32_t pid = 0;
};

// Who is in a group.
struct Roster {
  int rank = 0;
  std::vector<Member> members;  // By rank.
  uint64_t proof = 0;           // What only they know.

  int size() const { return static_cast<int>(members.size()); }
  // "rank 2 (10.0.0.3, pid 123)".
  std::string Describe(int rank) const;
};

struct Meeting {
  Roster roster;
  UniqueFd listener;  // At this rank's address.
};

// Rank 0 listens at the master's address; the others say there who they are and where they listen,
// and are told the same of everybody. Throws as MakeTcpGroup. REQUIRES: several ranks.
Meeting MeetAtMaster(const TcpGroupArgs& args, std::chrono::steady_clock::time_point deadline);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_MEETING_H_
