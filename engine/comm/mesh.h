// The connections between the ranks of a group on several hosts.
#ifndef DSAT_ENGINE_COMM_MESH_H_
#define DSAT_ENGINE_COMM_MESH_H_

#include <chrono>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/meeting.h"

namespace dsat::engine {

// Those with one peer. A message never stands in front of a collective, nor in the way of one that
// goes the other way: what a rank has sent arrives although it left without reading the rest.
struct PeerSockets {
  UniqueFd collectives;
  UniqueFd outgoing;  // Messages to the peer; nothing comes back but its farewell.
  UniqueFd incoming;
};

// Connects every two members: a collective call of all of them, each with a listener at its address
// in the roster that was there before any of them calls this. By rank; empty for the own one.
// Throws kUnavailable naming a member that cannot be reached or has ended, kDeadlineExceeded naming
// those that did not connect.
std::vector<PeerSockets> ConnectMembers(const Roster& roster, UniqueFd listener,
                                        std::chrono::steady_clock::time_point deadline);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_MESH_H_
