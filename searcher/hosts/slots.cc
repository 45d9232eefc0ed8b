// The slots of hosts: which of them a trial gets, and whether its ranks can run there.
#include "searcher/hosts/slots.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/num_cores.h"
#include "engine/runtime/rank_variables.h"
#include "searcher/command/command_words.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/hosts/hosts.h"

namespace dsat {
namespace {

bool IsNumber(const std::string& device) {
  return !device.empty() && device.find_first_not_of("0123456789") == std::string::npos;
}
bool IsMig(const std::string& device) {
  return device.starts_with("MIG-");
}

// The devices in `visible`, a value of CUDA_VISIBLE_DEVICES: up to the first word that names none,
// such as -1, as CUDA reads it.
std::vector<std::string> DevicesIn(std::string_view visible) {
  std::vector<std::string> devices;
  for (std::string_view rest = visible; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    const std::string device = Trimmed(std::string(word));
    const bool is_named = device.starts_with("GPU-") || IsMig(device);
    if (!is_named && !IsNumber(device)) break;
    devices.push_back(device);
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return devices;
}

// "/dev/nvidia0" and so on, one per GPU.
int64_t NumDeviceFiles() {
  constexpr std::string_view kPrefix = "nvidia";
  std::error_code error;
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    const std::string number = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
    if (IsNumber(number)) ++count;
  }
  return count;
}

// Refuses devices with names where only numbers work.
void CheckDeviceNames(const ExperimentSpec& spec, const LaunchHost& host) {
  const std::vector<std::string> devices =
      VisibleDevices(host).value_or(std::vector<std::string>());
  const auto named = std::ranges::find_if_not(devices, IsNumber);
  if (named == devices.end()) return;
  const auto launcher = FindRankLauncher(CommandWords(spec.entrypoint));
  if (launcher && launcher->name == "deepspeed") {
    Throw(ErrorCode::kInvalidArgument,
          "CUDA_VISIBLE_DEVICES has {}, and the entrypoint's launcher `deepspeed` reads numbers "
          "only: start dsat with numbers there, or use torchrun, or `python` without a launcher",
          *named);
  }
  if (std::ranges::none_of(devices, IsMig)) return;
  if (spec.slots_per_trial > 1 && (host.slots.empty() || host.slots.size() > 1)) {
    Throw(ErrorCode::kInvalidArgument,
          "resources.slots_per_trial: {}; expected 1 with the MIG devices of CUDA_VISIBLE_DEVICES, "
          "because a process sees only one of them",
          spec.slots_per_trial);
  }
  if (spec.device_memory_bytes == 0) {
    Throw(ErrorCode::kInvalidArgument,
          "resources.device_memory: not given; expected the memory of one MIG device of "
          "CUDA_VISIBLE_DEVICES, because nvidia-smi tells that of the whole GPU");
  }
}

bool MayUseGpus(const ExperimentSpec& spec) {
  return !IsBuiltin(spec) || spec.device != "cpu";
}

// Refuses slots of a hostfile that no visible device stands for: their ranks would use those of
// other slots.
void CheckSlotsAreDevices(const ExperimentSpec& spec, const LaunchHost& host) {
  if (!host.is_listed || !(host.reach.empty() ? UsesGpus(spec) : MayUseGpus(spec))) return;
  const auto devices = std::ssize(VisibleDevices(host).value_or(std::vector<std::string>()));
  const auto lacking = std::ranges::find_if(host.slots, [&](auto slot) { return slot >= devices; });
  if (devices == 0 || lacking == host.slots.end()) return;
  Throw(ErrorCode::kInvalidArgument,
        "the hostfile: slot {} of {} is no device, because CUDA_VISIBLE_DEVICES lists {} there; "
        "expected slots below {}: list or select others, or change the variable",
        *lacking, host.name, devices, devices);
}

// Refuses an option of the entrypoint's launcher that selects devices of this machine if the
// hostfile's slots are others.
void CheckLauncherUsesSlots(const ExperimentSpec& spec, const LaunchHost& host) {
  constexpr std::string_view kFlags[] = {
      "--num_gpus", "--num_accelerators", "--include", "-i", "--exclude", "-e", "--gpu_ids"};
  const bool are_first = host.slots.empty() || host.slots.back() + 1 == std::ssize(host.slots);
  if (!host.is_listed || are_first || IsBuiltin(spec) || !UsesGpus(spec)) return;
  const CommandWords command(spec.entrypoint);
  const auto launcher = FindRankLauncher(command);
  if (!launcher) return;
  for (size_t i = launcher->args_begin; i < launcher->args_end; ++i) {
    const std::string word = WithUnderscores(command.words()[i].text);
    const std::string flag = word.substr(0, word.find('='));
    if (std::ranges::find(kFlags, flag) == std::end(kFlags)) continue;
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: {} of `{}` selects devices of {} itself, and the hostfile selects others "
          "than the first: leave it out, or select the slots from 0 on",
          flag, launcher->name, host.name);
  }
}

// Refuses more ranks on a host than those of the built-in engine can share memory.
void CheckRanksOfHost(const ExperimentSpec& spec, int64_t num_ranks) {
  if (!IsBuiltin(spec) || num_ranks <= engine::kMostRanksOfHost) return;
  Throw(ErrorCode::kInvalidArgument,
        "resources.slots_per_trial: {} would start {} ranks on one host; expected at most {}: "
        "lower it, or list more hosts",
        spec.slots_per_trial, num_ranks, engine::kMostRanksOfHost);
}

constexpr double kFirstPauseSeconds = 10;
constexpr int64_t kMostLosses = 6;
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

std::optional<std::vector<std::string>> VisibleDevices(const LaunchHost& host) {
  if (!host.devices.empty()) return DevicesIn(host.devices);
  const char* const ours = host.reach.empty() ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  return ours == nullptr ? std::nullopt : std::optional(DevicesIn(ours));
}

int64_t NumGpusIn(const std::string& visible, int64_t num_files) {
  const std::vector<std::string> devices = DevicesIn(visible);
  const int64_t num_migs = std::ranges::count_if(devices, IsMig);
  return num_files == 0 ? 0 : num_migs + std::min(num_files, std::ssize(devices) - num_migs);
}

int64_t NumVisibleGpus() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? NumDeviceFiles() : NumGpusIn(visible, NumDeviceFiles());
}

std::vector<Slot> FindSlots(const std::vector<LaunchHost>& hosts, const std::set<Slot>& used,
                            int64_t num_ranks) {
  const auto wanted = static_cast<size_t>(num_ranks);
  const bool fits_on_one = std::ranges::any_of(
      hosts, [&](const LaunchHost& host) { return host.slots.size() >= wanted; });
  std::vector<Slot> found;
  for (size_t i = 0; i < hosts.size(); ++i) {
    std::vector<Slot> free;
    for (const int64_t index : hosts[i].slots)
      free.push_back({static_cast<int64_t>(i), index});
    std::erase_if(free, [&](const Slot& slot) { return used.contains(slot); });
    if (fits_on_one ? free.size() < wanted : free.size() < hosts[i].slots.size()) continue;
    const size_t count = std::min(free.size(), wanted - found.size());
    found.insert(found.end(), free.begin(), free.begin() + static_cast<std::ptrdiff_t>(count));
    if (found.size() == wanted) return found;
  }
  return {};
}

bool UsesGpus(const ExperimentSpec& spec) {
  return MayUseGpus(spec) && NumVisibleGpus() > 0;
}

LaunchHost ThisMachine(const ExperimentSpec& spec, int64_t num_slots) {
  // Two trials must not share a GPU, even if it has no device file.
  const int64_t least = IsBuiltin(spec) && spec.device == "cuda" ? 1 : NumCores();
  if (num_slots == 0) num_slots = UsesGpus(spec) ? NumVisibleGpus() : least;
  if (num_slots > kMostSlotsOfHost) {
    Throw(ErrorCode::kInvalidArgument, "--slots {}: expected at most {}, one for each device",
          num_slots, kMostSlotsOfHost);
  }
  LaunchHost host;
  for (int64_t slot = 0; slot < num_slots; ++slot)
    host.slots.push_back(slot);
  return host;
}

bool AreElsewhere(const std::vector<LaunchHost>& hosts) {
  return std::ranges::any_of(hosts, [](const LaunchHost& host) { return !host.reach.empty(); });
}

void CheckHosts(const ExperimentSpec& spec, const std::vector<LaunchHost>& hosts) {
  const std::vector<LaunchHost> here = {{}};
  for (const LaunchHost& host : hosts.empty() ? here : hosts)
    if (!IsBuiltin(spec)) CheckDeviceNames(spec, host);
  const bool are_elsewhere = AreElsewhere(hosts);
  const bool are_listed = std::ranges::any_of(hosts, &LaunchHost::is_listed);
  if (!are_elsewhere && !are_listed) {
    CheckRanksOfHost(spec, spec.slots_per_trial);
    return;
  }
  for (const LaunchHost& host : hosts)
    CheckSlotsAreDevices(spec, host);
  const std::vector<Slot> slots = FindSlots(hosts, {}, spec.slots_per_trial);
  if (slots.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "resources.slots_per_trial: {}; the hosts have fewer slots: list or select more, or "
          "lower it",
          spec.slots_per_trial);
  }
  std::map<int64_t, int64_t> ranks_of_host;
  for (const Slot& slot : slots)
    ++ranks_of_host[slot.host];
  for (const auto& [host, num_ranks] : ranks_of_host)
    CheckRanksOfHost(spec, num_ranks);
  if (!are_elsewhere) CheckLauncherUsesSlots(spec, hosts.at(0));
  if (IsBuiltin(spec) || !are_elsewhere) return;
  if (const std::string place = HiddenDeepSpeed(spec); !place.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: `deepspeed` in {} cannot be told of several hosts; expected its command as "
          "the entrypoint, `deepspeed SCRIPT ARGUMENTS`",
          place);
  }
  const auto launcher = FindRankLauncher(CommandWords(spec.entrypoint));
  const auto is_like_first = [&](const auto& host) {
    return host.second == ranks_of_host.begin()->second;
  };
  if (launcher && launcher->name == "accelerate" &&
      !std::ranges::all_of(ranks_of_host, is_like_first)) {
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: `accelerate` starts as many ranks on each host, and {} slots are not spread "
          "evenly over {} hosts: change resources.slots_per_trial, or use torchrun or deepspeed",
          spec.slots_per_trial, ranks_of_host.size());
  }
  if (spec.device_memory_bytes == 0) {
    Throw(ErrorCode::kInvalidArgument,
          "resources.device_memory: not given; expected the memory of one device, which this "
          "machine cannot ask other hosts for");
  }
}

int64_t NumSlots(const std::vector<LaunchHost>& hosts) {
  int64_t count = 0;
  for (const LaunchHost& host : hosts)
    count += std::ssize(host.slots);
  return count;
}

SlotPool SlotPool::On(const std::vector<LaunchHost>& hosts, int64_t num_ranks, bool are_known) {
  SlotPool pool(std::max<int64_t>(1, NumSlots(hosts) / num_ranks));
  if (!are_known || NumSlots(hosts) < num_ranks) return pool;
  pool.hosts_ = hosts;
  pool.num_ranks_ = num_ranks;
  return pool;
}

bool SlotPool::HasFree(double now_s) const {
  return num_ranks_ == 0 ? num_running_ < most_trials_ : !Find(used_, now_s).empty();
}

std::vector<Slot> SlotPool::Take(double now_s) {
  ++num_running_;
  if (num_ranks_ == 0) return {};
  const std::vector<Slot> slots = Find(used_, now_s);
  used_.insert(slots.begin(), slots.end());
  return slots;
}

void SlotPool::Return(const std::vector<Slot>& slots, bool answered) {
  --num_running_;
  for (const Slot& slot : slots) {
    used_.erase(slot);
    if (answered) losses_.erase(slot.host);
  }
}

std::optional<double> SlotPool::Lose(int64_t host, double now_s) {
  Loss& loss = losses_[host];
  if (now_s < loss.until_s) return std::nullopt;
  const double pause_s =
      ++loss.times < kMostLosses ? kFirstPauseSeconds * std::exp2(loss.times - 1) : kNever;
  loss.until_s = now_s + pause_s;
  return pause_s;
}

bool SlotPool::IsEnough() const {
  return num_ranks_ == 0 || !Find({}, std::numeric_limits<double>::max()).empty();
}

std::vector<Slot> SlotPool::Find(std::set<Slot> used, double now_s) const {
  for (const auto& [host, loss] : losses_) {
    if (loss.until_s <= now_s) continue;
    for (const int64_t index : hosts_.at(static_cast<size_t>(host)).slots)
      used.insert({host, index});
  }
  return FindSlots(hosts_, used, num_ranks_);
}

}  // namespace dsat
