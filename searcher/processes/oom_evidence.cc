// Finds out whether the kernel has killed processes for lack of host memory.
#include "searcher/processes/oom_evidence.h"

#include "base/files.h"
#include "base/regex.h"

namespace dsat {

std::optional<int64_t> FindCounter(std::string_view text, std::string_view key) {
  const RE2 counter(R"((?m)^)" + RE2::QuoteMeta(Piece(key)) + R"( (\d+))", RegexOptions());
  int64_t value = 0;
  return RE2::PartialMatch(Piece(text), counter, &value) ? std::optional(value) : std::nullopt;
}

// Lines are "number:controllers:path"; version 2 is "0::path". A mixed system has both, and the
// memory controller is then in version 1.
std::optional<MemoryCgroup> FindMemoryCgroup(std::string_view proc_self_cgroup) {
  for (const bool v1 : {true, false}) {
    const RE2 line(v1 ? R"((?m)^[^:\n]*:memory:(.*)$)" : R"((?m)^[^:\n]*::(.*)$)", RegexOptions());
    std::string path;
    if (RE2::PartialMatch(Piece(proc_self_cgroup), line, &path)) return MemoryCgroup{v1, path};
  }
  return std::nullopt;
}

std::optional<int64_t> CountOomKills() {
  const std::optional<MemoryCgroup> cgroup = FindMemoryCgroup(ReadOrEmpty("/proc/self/cgroup"));
  if (cgroup) {
    const std::string file = cgroup->v1
                                 ? "/sys/fs/cgroup/memory" + cgroup->path + "/memory.oom_control"
                                 : "/sys/fs/cgroup" + cgroup->path + "/memory.events";
    if (const auto count = FindCounter(ReadOrEmpty(file), "oom_kill")) return count;
  }
  return FindCounter(ReadOrEmpty("/proc/vmstat"), "oom_kill");
}

}  // namespace dsat
