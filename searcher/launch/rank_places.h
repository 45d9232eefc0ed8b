// The places of an attempt's ranks on its hosts, and the environment that follows from them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "searcher/launch/launch_target.h"

namespace dsat {

// A rank's place among the ranks of its attempt.
struct RankPlace {
  int64_t host = 0;  // Index of LaunchRequest::hosts.
  int64_t local_rank = 0;
  int64_t local_size = 0;  // Ranks on its host.
  int64_t node = 0;        // The index of its host among those with ranks.
  int64_t num_nodes = 1;   // The number of hosts with ranks.
};

// One per rank; all on this machine if the request has no slots.
std::vector<RankPlace> PlaceRanks(const LaunchRequest& request, int64_t num_ranks);

// CUDA_VISIBLE_DEVICES for the ranks on `host`, with the request's slots there, which are indices
// of the devices that are visible on that host if it says which these are. Empty if ranks are not
// pinned or slots are not devices.
std::map<std::string, std::string> DeviceEnvironment(const LaunchRequest& request, int64_t host);

// 128 random bits from the kernel as 32 hex digits.
std::string RandomToken();

// A port of this machine that is unused at this moment and that the kernel gives to no connection.
// Each call of a process returns another one. Throws Error if there is none.
int FreePort();

// MASTER_ADDR and MASTER_PORT for ranks on other hosts: the first host with ranks, as those on the
// others or on itself reach it, and a port that is likely to differ between attempts. REQUIRES: the
// request has slots.
std::map<std::string, std::string> MasterEnvironment(const LaunchRequest& request);

}  // namespace dsat
