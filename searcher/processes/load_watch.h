// Tells how much of this machine's processor time other processes use while trials run, which makes
// what the trials measure uncertain.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace dsat {

// Processor time, in ticks of sysconf(_SC_CLK_TCK).
struct MachineTicks {
  int64_t busy = 0;   // Time that a hypervisor gave to other machines counts as busy.
  int64_t total = 0;  // With idle time.
};
// Sums the lines of the processors `cpus` in the text of /proc/stat. 0 if there are none.
MachineTicks ParseMachineTicks(const std::string& proc_stat, const std::set<int>& cpus);

// Watches the processors that this process may use.
class LoadWatch {
 public:
  LoadWatch();

  // The part in [0, 1] of the processor time since construction or the last result that processes
  // used other than this one and its descendants. nullopt if this is less than a second ago, too
  // short for ticks, or if the machine does not say.
  std::optional<double> OthersPart();
  // The last result in words, once, if that is more than a tenth; else "".
  std::string News();

 private:
  struct Reading {
    std::chrono::steady_clock::time_point at;
    MachineTicks machine;
    int64_t own = 0;
  };
  Reading Read() const;

  const std::set<int> cpus_;
  Reading last_;
  double part_ = 0;
  bool was_told_ = false;
};

}  // namespace dsat
