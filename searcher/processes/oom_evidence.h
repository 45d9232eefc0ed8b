// Finds out whether the kernel has killed processes for lack of host memory.
#ifndef DSAT_SEARCHER_PROCESSES_OOM_EVIDENCE_H_
#define DSAT_SEARCHER_PROCESSES_OOM_EVIDENCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsat {

// The number of processes that the kernel's out-of-memory killer has killed so far, in our control
// group (version 2 or 1) if it counts them, else on this host. nullopt if there is no counter.
std::optional<int64_t> CountOomKills();

// The value of `key` in lines of "key value", as in /proc/vmstat and memory.events.
std::optional<int64_t> FindCounter(std::string_view text, std::string_view key);

// The path of this process's memory control group below its mount, from the text of
// /proc/self/cgroup: "/unified/path" for version 2, "/memory/path" for version 1 (`v1` is set).
struct MemoryCgroup {
  bool v1 = false;
  std::string path;
};
std::optional<MemoryCgroup> FindMemoryCgroup(std::string_view proc_self_cgroup);

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_OOM_EVIDENCE_H_
