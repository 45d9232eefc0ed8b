// The descendants of this process, found through /proc.
#include "searcher/processes/process_tree.h"

#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/files.h"
#include "base/parse_number.h"

namespace dsat {
namespace {

// The entries of a folder of /proc that are numbers. The folder may vanish at any moment.
std::vector<pid_t> NumbersIn(const std::string& folder) {
  std::vector<pid_t> numbers;
  DIR* const dir = opendir(folder.c_str());
  if (dir == nullptr) return numbers;
  while (const dirent* entry = readdir(dir)) {
    if (const auto number = ParseNumber<pid_t>(entry->d_name)) numbers.push_back(*number);
  }
  closedir(dir);
  return numbers;
}

// For kernels without /proc/<pid>/task/<tid>/children: reads the parent of every process.
std::vector<pid_t> ChildrenByScan(pid_t pid) {
  std::vector<pid_t> children;
  for (const pid_t candidate : AllProcesses()) {
    const std::optional<ProcessStat> stat = StatOf(candidate);
    if (stat && stat->parent == pid) children.push_back(candidate);
  }
  return children;
}

// Sends the signal unless the pid now belongs to another process.
void SignalOne(pid_t pid, pid_t parent, int signal_number) {
  const UniqueFd fd = OpenProcess(pid);
  if (fd.get() < 0) return;
  const std::optional<ProcessStat> stat = StatOf(pid);
  if (stat && (stat->parent == parent || stat->parent == getpid())) {
    syscall(SYS_pidfd_send_signal, fd.get(), signal_number, nullptr, 0);
    // This process leads its session, so that the group of a descendant contains only descendants.
    if (signal_number == SIGKILL && stat->group > 1 && stat->group != getpgrp()) {
      kill(-stat->group, SIGKILL);
    }
  }
}

void SignalBelow(pid_t pid, int signal_number) {
  for (const pid_t child : ChildrenOf(pid)) {
    // Before its parent is killed, because it would then become our child and be missed in this
    // pass.
    SignalBelow(child, signal_number);
    SignalOne(child, pid, signal_number);
  }
}

}  // namespace

std::optional<ProcessStat> ParseProcessStat(const std::string& text) {
  // "pid (name) state ppid pgrp ...": the name may contain any character, such as ')'.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  ProcessStat stat;
  fields >> stat.state >> stat.parent >> stat.group;
  constexpr int kFieldsBeforeTimes = 8;  // From the session to cmajflt.
  for (int i = 0; i < kFieldsBeforeTimes; ++i)
    fields >> skipped;
  std::array<int64_t, 4> ticks{};  // User and system time, its own and its children's.
  for (int64_t& part : ticks)
    fields >> part;
  constexpr int64_t kMostTicks = int64_t{1} << 60;
  const bool is_sum = std::ranges::all_of(
      ticks, [](int64_t part) { return part >= -kMostTicks && part <= kMostTicks; });
  if (!fields || !is_sum) return std::nullopt;
  stat.ticks = std::accumulate(ticks.begin(), ticks.end(), int64_t{0});
  return stat;
}

std::optional<ProcessStat> StatOf(pid_t pid) {
  return ParseProcessStat(ReadOrEmpty("/proc/" + std::to_string(pid) + "/stat"));
}

std::vector<pid_t> AllProcesses() {
  return NumbersIn("/proc");
}

UniqueFd OpenProcess(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

std::vector<pid_t> ChildrenOf(pid_t pid) {
  if (access("/proc/thread-self/children", F_OK) != 0) return ChildrenByScan(pid);
  std::vector<pid_t> children;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const pid_t task : NumbersIn(tasks)) {
    std::ifstream file(tasks + "/" + std::to_string(task) + "/children");
    pid_t child = 0;
    while (file >> child)
      children.push_back(child);
  }
  return children;
}

void SignalDescendants(int signal_number) {
  SignalBelow(getpid(), signal_number);
}

}  // namespace dsat
