// Which slots a trial gets, and what that makes of its ranks.
#ifndef DSAT_SEARCHER_HOSTS_PLACEMENT_H_
#define DSAT_SEARCHER_HOSTS_PLACEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "searcher/hosts/launch_host.h"
#include "searcher/launch/launch_request.h"

namespace dsat {

// Slots for one more trial of `num_ranks` ranks beside those in use; empty if there are too few.
// All trials of a search are placed alike, so that their measurements compare: what fits on one
// host gets the lowest free slots of the first that has enough; what does not gets hosts that
// nothing else runs on, in their order.
std::vector<Slot> FindSlots(const std::vector<LaunchHost>& hosts, const std::set<Slot>& used,
                            int64_t num_ranks);

// True if trials of `spec` run on this machine's GPUs, where it has any: each slot is one then.
bool UsesGpus(const ExperimentSpec& spec);
// This machine with `num_slots` slots; 0: its GPUs if trials use them, else its cores.
LaunchHost ThisMachine(const ExperimentSpec& spec, int64_t num_slots);
// True if at least one of them is not this machine.
bool AreElsewhere(const std::vector<LaunchHost>& hosts);
// Throws kInvalidArgument if they are, and trials of `spec` cannot run on them, saying why.
void CheckHosts(const ExperimentSpec& spec, const std::vector<LaunchHost>& hosts);

// GPUs of this machine that we may use, by the driver's device files and CUDA_VISIBLE_DEVICES.
int64_t NumVisibleGpus();

// A rank's place among the ranks of its attempt.
struct RankPlace {
  int64_t host = 0;  // Index of LaunchRequest::hosts.
  int64_t local_rank = 0;
  int64_t local_size = 0;  // Ranks on its host.
  int64_t node = 0;        // Number of its host among those that have ranks,
  int64_t num_nodes = 1;   // so many.
};

// One per rank; all on this machine if the request has no slots.
std::vector<RankPlace> PlaceRanks(const LaunchRequest& request, int64_t num_ranks);

// The environment of the ranks on `host` that tells them their devices: CUDA_VISIBLE_DEVICES with
// the request's slots there. On this machine they count among the devices visible to us. Empty if
// nothing is pinned, or if the slots are not devices.
std::map<std::string, std::string> DeviceEnvironment(const LaunchRequest& request, int64_t host);

// MASTER_ADDR and MASTER_PORT for ranks on several hosts: at the first of them, a port that two
// attempts hardly ever share. REQUIRES: the request has slots.
std::map<std::string, std::string> MeetingEnvironment(const LaunchRequest& request);

}  // namespace dsat

#endif  // DSAT_SEARCHER_HOSTS_PLACEMENT_H_
