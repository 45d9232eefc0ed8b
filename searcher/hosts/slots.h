// The slots of hosts: which of them a trial gets, and whether its ranks can run there.
#ifndef DSAT_SEARCHER_HOSTS_SLOTS_H_
#define DSAT_SEARCHER_HOSTS_SLOTS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/experiment.h"
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

// The devices that are visible on a host, of which its slots are indices; nullopt if that is not
// restricted, or not known.
std::optional<std::vector<std::string>> VisibleDevices(const LaunchHost& host);
// The number of devices that a value of CUDA_VISIBLE_DEVICES names.
int64_t NumDevicesIn(const std::string& visible);
// Returns how many of them a machine with `num_files` device files of GPUs has. An instance of a
// GPU (MIG) has no file of its own.
int64_t NumGpusIn(const std::string& visible, int64_t num_files);
// The number of usable GPUs of this machine, by the driver's device files and CUDA_VISIBLE_DEVICES.
int64_t NumVisibleGpus();

}  // namespace dsat

#endif  // DSAT_SEARCHER_HOSTS_SLOTS_H_
