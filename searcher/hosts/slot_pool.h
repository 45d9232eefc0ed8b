// The slots of a search's trials, and its hosts that are lost for now.
#ifndef DSAT_SEARCHER_HOSTS_SLOT_POOL_H_
#define DSAT_SEARCHER_HOSTS_SLOT_POOL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "searcher/processes/launch_host.h"

namespace dsat {

int64_t NumSlots(const std::vector<LaunchHost>& hosts);

// Times are seconds of any clock that does not go back.
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

#endif  // DSAT_SEARCHER_HOSTS_SLOT_POOL_H_
