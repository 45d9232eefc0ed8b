// How much of this machine's processor time other processes use.
#include "searcher/load_watch.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <vector>

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

// "" if the file is gone, as that of a process that has ended.
std::string TextOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// All processes by number.
std::map<pid_t, ProcessTicks> Processes() {
  std::map<pid_t, ProcessTicks> processes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::optional<ProcessTicks> process = ParseProcessTicks(TextOf(entry.path() / "stat"));
    if (process) processes[std::stoi(name)] = *process;
  }
  return processes;
}

// Of this process and its descendants.
int64_t OwnTicks() {
  const std::map<pid_t, ProcessTicks> processes = Processes();
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
    if (std::sscanf(line.c_str(), "cpu%d ", &cpu) != 1 || !cpus.contains(cpu)) continue;
    std::istringstream fields(line.substr(line.find(' ')));
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

std::optional<ProcessTicks> ParseProcessTicks(const std::string& process_stat) {
  // "PID (NAME) STATE PARENT ...", where the name may contain anything.
  const size_t name_end = process_stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(process_stat.substr(name_end + 1));
  std::string state, skipped;
  ProcessTicks process;
  fields >> state >> process.parent;
  constexpr int kFieldsBeforeTimes = 9;  // From the process group to cmajflt.
  for (int i = 0; i < kFieldsBeforeTimes; ++i)
    fields >> skipped;
  for (int i = 0; i < 4; ++i) {  // User and system time, its own and its children's.
    int64_t ticks = 0;
    fields >> ticks;
    process.ticks += ticks;
  }
  if (!fields) return std::nullopt;
  return process;
}

LoadWatch::LoadWatch() : cpus_(UsableCpus()), last_(Read()) {}

LoadWatch::Reading LoadWatch::Read() const {
  return {std::chrono::steady_clock::now(), ParseMachineTicks(TextOf("/proc/stat"), cpus_),
          OwnTicks()};
}

std::optional<double> LoadWatch::OthersPart() {
  if (std::chrono::steady_clock::now() - last_.at < kShortest) return std::nullopt;
  const Reading before = last_;
  last_ = Read();
  const int64_t total = last_.machine.total - before.machine.total;
  if (total <= 0) return std::nullopt;
  const int64_t others = (last_.machine.busy - before.machine.busy) - (last_.own - before.own);
  return std::clamp(static_cast<double>(others) / static_cast<double>(total), 0.0, 1.0);
}

}  // namespace dsat
