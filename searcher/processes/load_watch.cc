// Measures how much of this machine's processor time other processes use.
#include "searcher/processes/load_watch.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "base/files.h"
#include "searcher/processes/process_tree.h"

namespace dsat {
namespace {

constexpr std::chrono::seconds kShortest{1};

std::set<int> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::set<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.insert(cpu);
  }
  return cpus;
}

// The processor time of this process and its descendants.
int64_t OwnTicks() {
  std::map<pid_t, ProcessStat> processes;
  for (const pid_t pid : AllProcesses()) {
    if (const auto process = StatOf(pid)) processes[pid] = *process;
  }
  const auto is_ours = [&](pid_t pid) {
    while (pid != getpid()) {
      const auto found = processes.find(pid);
      if (found == processes.end()) return false;
      pid = found->second.parent;
    }
    return true;
  };
  int64_t own = 0;
  for (const auto& [pid, process] : processes)
    own += is_ours(pid) ? process.ticks : 0;
  return own;
}

}  // namespace

MachineTicks ParseMachineTicks(const std::string& proc_stat, const std::set<int>& cpus) {
  MachineTicks sum;
  std::istringstream lines(proc_stat);
  for (std::string line; std::getline(lines, line);) {
    int cpu = -1;
    int length = 0;
    if (std::sscanf(line.c_str(), "cpu%d%n", &cpu, &length) != 1 || !cpus.contains(cpu)) continue;
    std::istringstream fields(line.substr(static_cast<size_t>(length)));
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user and nice.
    std::array<int64_t, 8> ticks{};
    for (int64_t& field : ticks)
      fields >> field;
    for (size_t i = 0; i < ticks.size(); ++i) {
      const bool idle = i == 3 || i == 4;
      sum.busy += idle ? 0 : ticks[i];
      sum.total += ticks[i];
    }
  }
  return sum;
}

LoadWatch::LoadWatch() : cpus_(UsableCpus()), last_(Read()) {}

LoadWatch::Reading LoadWatch::Read() const {
  return {std::chrono::steady_clock::now(), ParseMachineTicks(ReadOrEmpty("/proc/stat"), cpus_),
          OwnTicks()};
}

std::optional<double> LoadWatch::OthersPart() {
  if (std::chrono::steady_clock::now() - last_.at < kShortest) return std::nullopt;
  const Reading before = last_;
  last_ = Read();
  const int64_t total = last_.machine.total - before.machine.total;
  if (total <= 0) return std::nullopt;
  const int64_t others = (last_.machine.busy - before.machine.busy) - (last_.own - before.own);
  return part_ = std::clamp(static_cast<double>(others) / static_cast<double>(total), 0.0, 1.0);
}

std::string LoadWatch::News() {
  constexpr double kWorthANote = 0.1;
  if (was_told_ || part_ <= kWorthANote) return "";
  was_told_ = true;
  return fmt::format(
      "other processes use {:.0f} % of this machine's processors: measurements are less certain",
      100 * part_);
}

}  // namespace dsat
