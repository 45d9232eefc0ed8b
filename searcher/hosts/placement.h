// The placement of trials on slots and of their ranks on hosts.
#ifndef DSAT_SEARCHER_HOSTS_PLACEMENT_H_
#define DSAT_SEARCHER_HOSTS_PLACEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "searcher/launch/launch_request.h"
#include "searcher/processes/launch_host.h"

namespace dsat {

// Slots for a trial of `num_ranks` ranks that are not in `used`; empty if there are too few. All
// trials of a search are placed in the same way, so that their measurements are comparable: a trial
// that fits on one host gets the lowest free slots of the first host that has enough; any other
// gets unused hosts in their order.
std::vector<Slot> FindSlots(const std::vector<LaunchHost>& hosts, const std::set<Slot>& used,
                            int64_t num_ranks);

// True if trials of `spec` run on this machine's GPUs if there are any; each slot is then a GPU.
bool UsesGpus(const ExperimentSpec& spec);
// This machine with `num_slots` slots; 0 = its GPUs if trials use GPUs, else its cores.
LaunchHost ThisMachine(const ExperimentSpec& spec, int64_t num_slots);
// True if at least one host is not this machine.
bool AreElsewhere(const std::vector<LaunchHost>& hosts);
// Throws kInvalidArgument with the reason if trials of `spec` cannot run on these hosts; none =
// this machine.
void CheckHosts(const ExperimentSpec& spec, const std::vector<LaunchHost>& hosts);

// The number of devices that a value of CUDA_VISIBLE_DEVICES names.
int64_t NumDevicesIn(const std::string& visible);
// Those of them that a machine with `num_files` device files of GPUs has. An instance of a GPU
// (MIG) has no file of its own.
int64_t NumGpusIn(const std::string& visible, int64_t num_files);
// The number of usable GPUs of this machine, by the driver's device files and CUDA_VISIBLE_DEVICES.
int64_t NumVisibleGpus();

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

// MASTER_ADDR and MASTER_PORT for ranks on other hosts: the first host with ranks, as those on the
// others or on itself reach it, and a port that is likely to differ between attempts. REQUIRES: the
// request has slots.
std::map<std::string, std::string> MasterEnvironment(const LaunchRequest& request);

}  // namespace dsat

#endif  // DSAT_SEARCHER_HOSTS_PLACEMENT_H_
