// Finds out whether the kernel has killed processes for lack of host memory.
#include "searcher/processes/oom_evidence.h"

#include <charconv>

#include "base/files.h"

namespace dsat {
namespace {

// Calls `use` with each line until it returns true.
template <typename Use>
void ForEachLine(std::string_view text, const Use& use) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (use(text.substr(0, end))) return;
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

}  // namespace

std::optional<int64_t> FindCounter(std::string_view text, std::string_view key) {
  std::optional<int64_t> found;
  ForEachLine(text, [&](std::string_view line) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ' ')
      return false;
    const std::string_view digits = line.substr(key.size() + 1);
    int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec == std::errc()) found = value;
    return true;
  });
  return found;
}

std::optional<MemoryCgroup> FindMemoryCgroup(std::string_view proc_self_cgroup) {
  std::optional<MemoryCgroup> found;
  // Lines are "number:controllers:path"; version 2 is "0::path". A mixed system has both, and the
  // memory controller is then in version 1.
  ForEachLine(proc_self_cgroup, [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) return false;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool v1 = controllers == "memory";
    if (!v1 && !controllers.empty()) return false;
    found = MemoryCgroup{.v1 = v1, .path = std::string(line.substr(second + 1))};
    return v1;
  });
  return found;
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
