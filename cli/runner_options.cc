// The options for running trials: this build's programs, the command line's options, and the hosts.
#include "cli/runner_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ranges>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/status_line.h"
#include "searcher/hosts/hosts.h"
#include "searcher/hosts/slots.h"
#include "searcher/hosts/slurm.h"
#include "searcher/search/runner_lock.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

std::string EnvironmentOr(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

// The environment for ranks on other hosts: .deepspeed_env over the exported part of ours.
std::map<std::string, std::string> HostEnvironment() {
  std::vector<std::string> ours;
  for (char** variable = environ; *variable != nullptr; ++variable)
    ours.emplace_back(*variable);
  const std::string name = EnvironmentOr("DS_ENV_FILE", ".deepspeed_env");
  const std::vector<std::string> folders = {EnvironmentOr("HOME", "."), "."};
  const bool exists = std::ranges::any_of(
      folders, [&](const std::string& folder) { return fs::exists(fs::path(folder) / name); });
  if (!exists && std::getenv("DS_ENV_FILE") != nullptr)
    Log(LogLevel::kWarn, fmt::format("DS_ENV_FILE: {} does not exist", name));
  std::map<std::string, std::string> variables = ReadDeepSpeedEnv(name, folders);
  variables.merge(ExportedVariables(ours));
  return variables;
}

// "hosts: worker-0 (4 slots), worker-1 (4 slots)".
std::string HostsLine(const std::vector<LaunchHost>& hosts) {
  const auto text_of = [](const LaunchHost& host) {
    return fmt::format("{} ({})", host.name, Counted(std::ssize(host.slots), "slot"));
  };
  return fmt::format("hosts: {}", fmt::join(hosts | std::views::transform(text_of), ", "));
}

// The nodes of the job in which this process runs, or jobs for PlanSlurm.
void UseSlurm(const HostFlags& flags, RunnerOptions* options) {
  HostAccess access{.environment = HostEnvironment()};
  const std::string job = EnvironmentOr("SLURM_JOB_ID", "");
  if (job.empty()) {
    options->jobs = {.args = SplitSlurmArgs(flags.slurm_args),
                     .slots_per_node = flags.slurm_slots_per_node,
                     .access = std::move(access)};
    return;
  }
  if (!flags.slurm_args.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "--slurm-args {}: inside of job {} of Slurm, trials are steps of that job; leave it out, "
          "or unset SLURM_JOB_ID so that each trial gets a job of its own",
          Printable(flags.slurm_args), Printable(job));
  }
  const SlurmNodes nodes = NodesOfThisJob(flags.slurm_slots_per_node);
  access.slurm_job = nodes.job;
  options->machines = ReachHosts(nodes.hosts, access, options->dsat_binary);
  CountDevicesAsSlots(flags.slurm_slots_per_node, &options->machines.hosts);
  Say(stderr, fmt::format("job {} of Slurm, {}\n", nodes.job, HostsLine(options->machines.hosts)));
}

// The warning about the first host whose slots for several trials are more than its cores; "" if
// there is none.
std::string SharedCoresWarning(const ExperimentSpec& spec, const std::vector<LaunchHost>& hosts) {
  for (const LaunchHost& host : hosts) {
    const int64_t cores = host.reach.empty() ? NumCores() : host.num_cores;
    const auto slots =
        std::min(std::ssize(host.slots), spec.options.max_concurrent_trials * spec.slots_per_trial);
    if (slots <= cores || slots < 2 * spec.slots_per_trial) continue;
    return fmt::format(
        "host {} has {} cores for {} slots, so that trials share them and slow each other down; "
        "their measurements are not comparable: give it slots={}",
        host.name, cores, slots, std::max(cores, spec.slots_per_trial));
  }
  return "";
}

}  // namespace

std::string SharedSlotsWarning(const ExperimentSpec& spec, const RunnerOptions& options) {
  if (!options.machines.hosts.empty())
    return UsesGpus(spec) ? "" : SharedCoresWarning(spec, options.machines.hosts);
  if (options.num_slots == 0) return "";
  const SearchOptions& limits = spec.options;
  const int64_t slots = std::min(options.num_slots, limits.max_slots.value_or(options.num_slots));
  const int64_t trials = std::min(slots / spec.slots_per_trial, limits.max_concurrent_trials);
  const auto own = static_cast<int64_t>(ThisMachine(spec, 0).slots.size());
  if (trials < 2 || trials * spec.slots_per_trial <= own) return "";
  return fmt::format(
      "--slots {}: this machine has {} {}, so that {} trials of {} share them and slow each "
      "other down; their measurements are not comparable: leave out --slots, or use --slots {}",
      options.num_slots, own, UsesGpus(spec) ? "GPUs" : "cores", trials,
      Counted(spec.slots_per_trial, "rank"), std::max(own, spec.slots_per_trial));
}

RunnerOptions MakeRunnerOptions(const RunFlags& run) {
  // dsat-trial is in this program's folder, both in a build and in an installation.
  const fs::path program = fs::read_symlink("/proc/self/exe");
  RunnerOptions options{.dsat_binary = program.string(),
                        .trial_binary = (program.parent_path() / "dsat-trial").string(),
                        .out_dir = "",
                        .num_slots = run.num_slots,
                        .hang_timeout = std::chrono::seconds(run.hang_timeout_s),
                        .start_timeout = std::chrono::seconds(run.start_timeout_s),
                        .trial_timeout = std::chrono::seconds(run.trial_timeout_s)};
  if (!run.hosts.launcher.empty()) UseSlurm(run.hosts, &options);
  if (run.hosts.hostfile.empty()) return options;
  options.machines = ReachHosts(SelectHosts(ReadHostfile(run.hosts.hostfile), run.hosts.filters),
                                {.ssh = run.hosts.ssh,
                                 .master_addr = run.hosts.master_addr,
                                 .environment = HostEnvironment()},
                                options.dsat_binary);
  Say(stderr, fmt::format("{}\n", HostsLine(options.machines.hosts)));
  return options;
}

void CheckRunnable(const ExperimentSpec& spec, const RunFlags& run, const RunnerOptions& options) {
  if (options.machines.hosts.empty()) ThisMachine(spec, options.num_slots);
  MakeWritableFolder(run.out_dir.empty() ? "dsat-out" : run.out_dir);
  if (!run.out_dir.empty()) RunnerLock::CheckUnclaimed(run.out_dir);
}

void PlanSlurm(const ExperimentSpec& spec, RunnerOptions* options) {
  if (!options->jobs) return;
  options->machines = PlanJobs(spec, &*options->jobs);
  const std::vector<LaunchHost>& hosts = options->machines.hosts;
  Say(stderr,
      fmt::format("each attempt is a job of Slurm: {} with {}\n",
                  Counted(std::ssize(hosts), "node"), Counted(std::ssize(hosts[0].slots), "slot")));
}

void CheckTarget(const std::string& option, const std::string& path, const std::string& kind,
                 std::string_view mark) {
  if (!fs::exists(path)) return;
  std::string begin(256, '\0');
  std::ifstream(path).read(begin.data(), std::ssize(begin));
  const bool is_file = fs::is_regular_file(path);
  if (is_file && (fs::file_size(path) == 0 || begin.find(mark) != begin.npos)) return;
  Throw(ErrorCode::kAlreadyExists,
        "{}: {} is {}, and not {} that dsat has written, which it would replace; name another file",
        option, path, is_file ? "a file" : "no file", kind);
}

}  // namespace dsat::cli
