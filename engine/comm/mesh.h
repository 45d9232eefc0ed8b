// The connections between the ranks of a group on several hosts.
#ifndef DSAT_ENGINE_COMM_MESH_H_
#define DSAT_ENGINE_COMM_MESH_H_

#include <chrono>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/tcp_rendezvous.h"

namespace dsat::engine {

// The connections with one peer. Collectives and the messages of either direction are separate, so
// that none of them waits for another, and a message arrives even if its sender leaves without
// reading.
struct PeerSockets {
  UniqueFd collectives;
  UniqueFd outgoing;  // Messages to the peer, which sends nothing back but its goodbye message.
  UniqueFd incoming;
};

// Connects all pairs of members. A collective call, for which each member already listens at its
// address in `membership`. The result is by rank and empty for this rank. Throws kUnavailable
// naming a member that cannot be reached or has ended, kDeadlineExceeded naming those that did not
// connect.
std::vector<PeerSockets> ConnectMembers(const Membership& membership, UniqueFd listener,
                                        std::chrono::steady_clock::time_point deadline);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_MESH_H_
