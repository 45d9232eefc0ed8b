// The slots of hosts: which of them a trial gets, and whether its ranks can run there.
#pragma once

#include <cstdint>
#include <map>
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
// Returns how many devices a machine with `num_files` device files of GPUs has of those that
// `visible`, a value of CUDA_VISIBLE_DEVICES, names. An instance of a GPU (MIG) has no file of its
// own.
int64_t NumGpusIn(const std::string& visible, int64_t num_files);
// The number of usable GPUs of this machine, by the driver's device files and CUDA_VISIBLE_DEVICES.
int64_t NumVisibleGpus();

int64_t NumSlots(const std::vector<LaunchHost>& hosts);

// The slots of a search's trials, and its hosts that are lost for now. Times are seconds of any
// clock that does not go back.
class SlotPool {
 public:
  // Up to `most_trials` at once, none with slots of its own.
  explicit SlotPool(int64_t most_trials) : most_trials_(most_trials) {}
  // Trials of `num_ranks` ranks on these hosts, each with its own slots (FindSlots). If the number
  // of devices is not known (slots are then cores), they are only counted; if there are too few,
  // one trial at a time shares them.
  static SlotPool On(const std::vector<LaunchHost>& hosts, int64_t num_ranks, bool are_known);

  bool HasFree(double now_s) const;
  // The slots of the next trial; empty if trials have none of their own. REQUIRES: HasFree(now_s).
  std::vector<Slot> Take(double now_s);
  // A trial with these slots has ended. `answered`: its hosts can be reached.
  void Return(const std::vector<Slot>& slots, bool answered);
  // `host`, an index of the hosts, cannot be reached. It gets no trial for ten seconds, and twice
  // as long each time that it is lost again; after six times in a row it gets none any more.
  // Returns this pause in seconds, infinite in the end; nullopt if one is under way. REQUIRES:
  // trials have slots of their own.
  std::optional<double> Lose(int64_t host, double now_s);
  // Whether enough slots for a trial are on hosts that are not lost for good.
  bool IsEnough() const;

 private:
  struct Loss {
    int64_t times = 0;  // In a row.
    double until_s = 0;
  };
  std::vector<Slot> Find(std::set<Slot> used, double now_s) const;

  std::vector<LaunchHost> hosts_;
  int64_t num_ranks_ = 0;  // 0: trials have no slots of their own.
  int64_t most_trials_ = 0;
  int64_t num_running_ = 0;
  std::set<Slot> used_;
  std::map<int64_t, Loss> losses_;  // By host.
};

}  // namespace dsat
