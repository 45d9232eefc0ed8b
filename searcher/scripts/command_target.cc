// The user's own command as a launch target. dsat does not change the script: it replaces the
// config file, and reads the files in which the ranks report what they ran and measured
// (docs/external.md).
#include "searcher/scripts/command_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "proto/launch_settings.h"
#include "proto/search_policy.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/import_hook.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/hosts/slots.h"
#include "searcher/launch/rank_places.h"
#include "searcher/processes/leftovers.h"
#include "searcher/scripts/device_memory.h"
#include "searcher/scripts/exit_classifier.h"
#include "searcher/scripts/hook_report.h"
#include "searcher/scripts/node_command.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

using Clock = std::chrono::steady_clock;

// How long a measurement waits for the reports of ranks that end after rank 0.
constexpr std::chrono::seconds kReportsWait{5};
// The size of the end of a log that is searched for the cause of a failure.
constexpr int64_t kLogEndBytes = 256 * 1024;

// The files of an attempt: the config that dsat writes for the script, and the reports and logs
// that the ranks leave. Paths are absolute. A file that another process is still writing is read as
// if it were not there.
struct AttemptFiles {
  std::string hook(int64_t rank) const { return dir / fmt::format("hook-rank{}.json", rank); }
  std::string log(int64_t number) const { return dir / fmt::format("{}{}.log", logs_of, number); }
  std::string config() const { return dir / "ds_config.json"; }
  // The end of a log, where the cause of a failure is.
  std::string ReadLogEnd(int64_t number) const { return ReadEnd(log(number), kLogEndBytes); }
  // The reports of the ranks, in their order; empty if rank 0 has written none.
  std::vector<HookReport> ReadReports(int64_t num_ranks) const {
    std::vector<HookReport> reports;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      auto report = ReadHookReport(ReadOrEmpty(hook(rank)));
      if (!report && rank == 0) return {};
      reports.push_back(std::move(report).value_or(HookReport{}));
    }
    return reports;
  }

  fs::path dir;
  std::string logs_of;  // "rank" if dsat starts the ranks, "host" if the command does on each host.
};

class CommandTarget : public LaunchTarget {
 public:
  CommandTarget(const ExperimentSpec& spec, std::string python)
      : spec_(spec),
        python_(std::move(python)),
        names_config_(NamesConfig(spec)),
        launcher_(FindRankLauncher(CommandWords(spec.entrypoint))),
        starts_ranks_(StartsRanks(spec)),
        runs_dry_(spec.options.profile == "dry-run" && !python_.empty() &&
                  !PolicyOf(spec.options).published_memory) {}

  std::vector<RankCommand> Prepare(const LaunchRequest& request) override;
  AttemptNews Poll(const LaunchRequest& request, bool have_exited) override;
  Outcome Classify(const LaunchRequest& request, const ExitReport& exit) override;

 private:
  struct Given {
    bool by_poll = false;  // Poll has returned it.
    Clock::time_point measured_at = Clock::time_point::max();
  };

  std::vector<RankPlace> PlaceCommands(const LaunchRequest& request) const;
  AttemptFiles FilesOf(const LaunchRequest& request) const {
    return {fs::absolute(request.dir).lexically_normal(), starts_ranks_ ? "host" : "rank"};
  }
  std::map<std::string, std::string> OwnEnvironment(const LaunchRequest& request) const;
  std::map<std::string, std::string> EnvironmentOn(int64_t host, const LaunchRequest& request,
                                                   std::map<std::string, std::string> env) const;
  // The reports of all ranks; empty if rank 0 has written none.
  std::vector<HookReport> ReportsOf(const LaunchRequest& request) const {
    return FilesOf(request).ReadReports(spec_.slots_per_trial);
  }
  std::string Misfit(const LaunchRequest& request, const std::vector<HookReport>& reports) const;
  // After which the script ends at the earliest, counted from 0.
  int64_t LastStep(const LaunchRequest& request) const {
    return std::max(spec_.options.end_profile_step, request.steps - 1);
  }
  ModelProfile ReadProfile(const LaunchRequest& request, const HookReport& report) const;
  PointResult ReadPoint(const LaunchRequest& request, const std::vector<HookReport>& reports) const;
  std::optional<Outcome> OutcomeOf(const LaunchRequest& request,
                                   const std::vector<HookReport>& reports) const;
  std::string WhyNothing(const LaunchRequest& request) const;

  ExperimentSpec spec_;
  std::string python_;  // PythonFolder().
  bool names_config_;
  std::optional<RankLauncher> launcher_;  // The one that the command shows.
  bool starts_ranks_;                     // By this launcher or by itself.
  bool runs_dry_;                         // Whether a dry run gives the profile, until it fails.
  std::map<int64_t, int64_t> fed_;        // The largest batch of rank 0 by micro-batch size.
  std::map<std::string, Given> given_;    // By request.dir.
};

int64_t MicroBatchOf(const LaunchRequest& request) {
  return request.ds_config.at("train_micro_batch_size_per_gpu");
}
int64_t AccumulationOf(const LaunchRequest& request) {
  return request.ds_config.at("gradient_accumulation_steps");
}

// One command per host if it starts the ranks itself, else one per slot.
std::vector<RankPlace> CommandTarget::PlaceCommands(const LaunchRequest& request) const {
  std::vector<RankPlace> places = PlaceRanks(request, spec_.slots_per_trial);
  if (starts_ranks_)
    std::erase_if(places, [](const RankPlace& place) { return place.local_rank > 0; });
  return places;
}

// The environment of all ranks. Creates the folder of DeepSpeed's compiled extensions.
std::map<std::string, std::string> CommandTarget::OwnEnvironment(
    const LaunchRequest& request) const {
  const AttemptFiles files = FilesOf(request);
  std::map<std::string, std::string> env = {{"PYTHONUNBUFFERED", "1"},
                                            {"DSAT_TRIAL_ID", std::to_string(request.trial)},
                                            {"DSAT_TRIAL_DIR", files.dir},
                                            {kConfigVariable, files.config()}};
  if (!request.full_run) {
    env["DSAT_MEASURE"] = request.kind == TrialKind::kProfile ? "profile" : "steps";
    env["DSAT_START_PROFILE_STEP"] = std::to_string(spec_.options.start_profile_step);
    env["DSAT_END_PROFILE_STEP"] = std::to_string(LastStep(request));
  }
  env["DSAT_TRAINER"] = TrainerArgumentsOf(request.ds_config).dump();
  if (request.steps > 0 || PolicyOf(spec_.options).fixed_window) env["DSAT_FIXED_STEPS"] = "1";
  // A longer run than the others tells enough with as many steps as they have.
  if (request.steps > 0)
    env["DSAT_SUFFICIENT_STEP"] = std::to_string(spec_.options.end_profile_step);
  if (OthersMayReadConfig(spec_)) env["DSAT_CONFIG_READ"] = "1";
  const Json* steps = FindAtPointer(spec_.ds_config, kAccumulationKey);
  if (steps != nullptr && steps->is_number_integer())
    env["DSAT_SUBMITTED_ACCUMULATION"] = steps->dump();
  // A folder given by the user has precedence, and a full run uses the same folder as without dsat.
  const bool given =
      std::getenv("TORCH_EXTENSIONS_DIR") || spec_.environment.contains("TORCH_EXTENSIONS_DIR");
  if (given || request.full_run) return env;
  const fs::path shared =
      request.shared_dir.empty() ? files.dir.parent_path() : fs::absolute(request.shared_dir);
  env["TORCH_EXTENSIONS_DIR"] = shared / "torch_extensions";
  MakeWritableFolder(env["TORCH_EXTENSIONS_DIR"]);
  RemoveStaleLocks(env["TORCH_EXTENSIONS_DIR"]);
  return env;
}

// The environment of all ranks on one host.
std::map<std::string, std::string> CommandTarget::EnvironmentOn(
    int64_t host, const LaunchRequest& request, std::map<std::string, std::string> env) const {
  const auto& given = request.hosts[static_cast<size_t>(host)].environment;
  env.insert(given.begin(), given.end());
  // A virtual environment's programs come first in PATH, which ssh does not carry over.
  const bool is_here = request.hosts[static_cast<size_t>(host)].reach.empty();
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (is_here || std::getenv(name) == nullptr) continue;
    env.emplace(name, std::getenv(name));
    env.emplace("PATH", std::getenv("PATH"));
  }
  for (const auto& [name, value] : VariablesOf(request.ds_config, spec_.environment))
    env[name] = value;
  for (const auto& [name, value] : DeviceEnvironment(request, host))
    env[name] = value;
  if (!python_.empty()) {
    const char* const ours = std::getenv("PYTHONPATH");
    const std::string rest =
        env.contains("PYTHONPATH") ? env["PYTHONPATH"] : (ours == nullptr ? "" : ours);
    env["PYTHONPATH"] = PythonPath(python_, rest);
  }
  return env;
}

// Tells a command that starts the ranks itself what it leaves open: by the variables of torchrun,
// which the import hook reads for other launchers, by those of command lines that start torchrun,
// and by that from which DeepSpeed counts the devices of a host without GPUs.
void TellLaunchers(const RankPlace& place, const std::map<std::string, std::string>& meeting,
                   std::map<std::string, std::string>& env) {
  const std::string ranks = std::to_string(place.local_size);
  env.emplace("LOCAL_SIZE", ranks);
  for (const std::string prefix : {"PET_", ""}) {
    env.emplace(prefix + "NPROC_PER_NODE", ranks);
    env.emplace(prefix + "NNODES", std::to_string(place.num_nodes));
    env.emplace(prefix + "NODE_RANK", std::to_string(place.node));
    for (const auto& [name, value] : meeting)
      env.emplace(prefix + name, value);
  }
}

// Tells a rank that dsat starts its place among the others.
void TellRank(int64_t rank, int64_t num_ranks, const RankPlace& place,
              const std::map<std::string, std::string>& meeting,
              std::map<std::string, std::string>& env) {
  env.insert({{"WORLD_SIZE", std::to_string(num_ranks)},
              {"LOCAL_SIZE", std::to_string(place.local_size)},
              {"LOCAL_WORLD_SIZE", std::to_string(place.local_size)},
              {"CROSS_RANK", std::to_string(place.node)},
              {"CROSS_SIZE", std::to_string(place.num_nodes)}});
  env.insert(meeting.begin(), meeting.end());
  env["RANK"] = env["DSAT_RANK"] = std::to_string(rank);
  env["LOCAL_RANK"] = std::to_string(place.local_rank);
}

std::vector<RankCommand> CommandTarget::Prepare(const LaunchRequest& request) {
  const AttemptFiles files = FilesOf(request);
  Json config = ConfigForScript(spec_, request.ds_config, !python_.empty());
  config.erase(kLaunchSection);  // The command and its environment have it.
  if (!request.full_run) config = ConfigForTrial(std::move(config));
  WriteFileAtomic(files.config(), config.dump(2) + "\n", /*waits_for_disk=*/false);
  for (int64_t rank = 0; rank < spec_.slots_per_trial; ++rank)
    fs::remove(files.hook(rank));
  const std::vector<RankPlace> places = PlaceCommands(request);
  const bool on_hosts = AreElsewhere(request.hosts);
  std::map<std::string, std::string> meeting = {{"MASTER_ADDR", "127.0.0.1"}};
  if (on_hosts) meeting = MasterEnvironment(request);
  if (!on_hosts) meeting["MASTER_PORT"] = std::to_string(FreePort());
  const int port = std::stoi(meeting["MASTER_PORT"]);
  const bool is_ours = !launcher_ || launcher_->needs_port || on_hosts;

  std::vector argvs(places.size(), ArgvForTrial(spec_, request.ds_config, files.config(), port,
                                                PythonPath(python_, "")));
  if (launcher_ && on_hosts) argvs = ArgvOfHosts(argvs[0], request, files.dir / "hostfile");
  std::map<std::string, std::string> own = OwnEnvironment(request);
  own.merge(FileForRanks(spec_, config));
  std::vector<RankCommand> commands;
  for (size_t i = 0; i < places.size(); ++i) {
    const RankPlace& place = places[i];
    const auto rank = static_cast<int64_t>(i);
    RankCommand& command = commands.emplace_back();
    command.argv = argvs[i];
    command.env = EnvironmentOn(place.host, request, own);
    command.work_dir = spec_.model_dir;
    command.log_path = files.log(rank);
    command.host = place.host;
    command.files = {files.config()};
    command.shares_folder = true;  // For the reports and the logs.
    command.buffers_port = is_ours ? port : launcher_->port.value_or(0);
    if (starts_ranks_) TellLaunchers(place, meeting, command.env);
    if (spec_.slots_per_trial == 1) {
      // It finds no variables of a launcher, as without dsat, until it needs them.
      command.env["DSAT_RANK"] = "0";
      command.env["DSAT_MASTER_PORT"] = std::to_string(port);
    } else if (!starts_ranks_) {
      TellRank(rank, spec_.slots_per_trial, place, meeting, command.env);
    }
  }
  runs_dry_ &= request.kind == TrialKind::kProfile;
  const std::string dry_run =
      runs_dry_ ? ProfileByDryRun(spec_, request.ds_config, files.hook(0)) : "";
  runs_dry_ &= !dry_run.empty();
  if (!runs_dry_) return commands;
  commands.resize(1);
  commands[0].argv = {"/bin/sh", "-c", dry_run};
  return commands;
}

// Samples of an optimizer step on all ranks.
int64_t BatchOf(const LaunchRequest& request, const HookReport& report) {
  const int64_t replicas = report.ran.data_parallel_size;
  if (replicas < 1) return request.ds_config.at("train_batch_size");
  return MicroBatchOf(request) * AccumulationOf(request) * replicas;
}

// Why the measurement is not one of the trial's config; "" if it is.
std::string CommandTarget::Misfit(const LaunchRequest& request,
                                  const std::vector<HookReport>& reports) const {
  const std::string rewritten = Rewritten(reports[0].ran, request.ds_config);
  if (!rewritten.empty()) {
    return fmt::format(
        "the script did not train with the config that it was given: {}; find out "
        "who sets that, such as an argument of the trainer",
        rewritten);
  }
  const int64_t batch = BatchOf(request, reports[0]);
  if (reports[0].samples > 0 && reports[0].samples != static_cast<double>(batch)) {
    return fmt::format(
        "the script did not use the config that it was given: it trained with train_batch_size "
        "{:.0f}, the config says {}",
        reports[0].samples, batch);
  }
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const std::string batches = MisfitOfBatches(reports[rank], MicroBatchOf(request), fed_, spec_);
    if (!batches.empty()) return batches;
    const std::vector<double>& losses = reports[rank].losses;
    if (!losses.empty() && !std::isfinite(losses.back())) {
      return fmt::format("the loss of rank {} is not finite after {} steps: training diverges",
                         rank, losses.size());
    }
  }
  return reports[0].losses.empty() ? DivergedLoss(FilesOf(request).ReadLogEnd(0)) : "";
}

// Throws as ProfileOf.
ModelProfile CommandTarget::ReadProfile(const LaunchRequest& request,
                                        const HookReport& report) const {
  int64_t memory = spec_.device_memory_bytes;
  if (!report.profile.contains("device_memory_bytes")) {
    if (memory == 0) memory = NvidiaMemoryBytes().value_or(0);
    if (memory == 0) memory = HostMemoryBytes() / spec_.slots_per_trial;
  }
  return ProfileOf(report, memory, FilesOf(request).hook(0) + ": profile");
}

// Returns the outcome that the reports show, also of ranks that end in the middle of a step;
// nullopt if there is no result.
std::optional<Outcome> CommandTarget::OutcomeOf(const LaunchRequest& request,
                                                const std::vector<HookReport>& reports) const {
  if (request.full_run || reports.empty()) return std::nullopt;
  if (const std::string other = MisfitOfRanks(reports[0], spec_); !other.empty())
    return Outcome{TrialState::kFailed, other};
  if (request.kind == TrialKind::kProfile) {
    if (reports[0].profile.is_null()) return std::nullopt;
    try {
      ReadProfile(request, reports[0]);
    } catch (const Error& error) {
      return Outcome{TrialState::kFailed, error.what()};
    }
    return Outcome{TrialState::kSucceeded, ""};
  }
  if (!reports[0].problem.empty()) {
    return Outcome{TrialState::kFailed,
                   fmt::format("{}: {}; docs/dev/scripts.md describes its keys",
                               FilesOf(request).hook(0), reports[0].problem)};
  }
  if (reports[0].steps.empty()) return std::nullopt;
  const std::string misfit = Misfit(request, reports);
  return Outcome{misfit.empty() ? TrialState::kSucceeded : TrialState::kFailed, misfit};
}

PointResult CommandTarget::ReadPoint(const LaunchRequest& request,
                                     const std::vector<HookReport>& reports) const {
  PointResult result;
  result.point = {MicroBatchOf(request), AccumulationOf(request)};
  result.measurement = MeasurementOf(reports, BatchOf(request, reports[0]));
  const std::string& pattern = spec_.options.loss_pattern;
  result.losses =
      pattern.empty() ? MeanLosses(reports) : LossesInLog(FilesOf(request).log(0), pattern);
  for (const HookReport& report : reports) {
    if (report.peak_bytes)
      result.rank_peak_bytes.push_back(static_cast<int64_t>(*report.peak_bytes));
    result.by_hook |= report.changed_script;
  }
  return result;
}

AttemptNews CommandTarget::Poll(const LaunchRequest& request, bool have_exited) {
  std::vector<HookReport> reports = FilesOf(request).ReadReports(1);
  if (reports.empty()) return {};
  AttemptNews news{.measured = {}, .profile = {}, .progress = reports[0].num_steps};
  const bool is_profile = request.kind == TrialKind::kProfile;
  Given& given = given_[request.dir];
  if (given.by_poll || (!is_profile && reports[0].steps.empty())) return news;
  if (!is_profile) reports = ReportsOf(request);
  const std::optional<Outcome> outcome = OutcomeOf(request, reports);
  if (!outcome || outcome->state != TrialState::kSucceeded) return news;
  given.measured_at = std::min(given.measured_at, Clock::now());
  const bool waits = !is_profile && !have_exited && AreReportsMissing(reports);
  if (waits && Clock::now() - given.measured_at < kReportsWait) return news;
  given.by_poll = true;
  if (is_profile) {
    news.profile = ReadProfile(request, reports[0]);
  } else {
    news.measured = ReadPoint(request, reports);
  }
  return news;
}

// Why there is no result although all ranks exited with code 0.
std::string CommandTarget::WhyNothing(const LaunchRequest& request) const {
  const std::vector<HookReport> reports = ReportsOf(request);
  const std::string path = FilesOf(request).hook(0);
  if (reports.empty() && fs::exists(path)) {
    constexpr size_t kMostQuoted = 100;
    return fmt::format(
        "{}: holds \"{}\"; expected the JSON object that dsat.report() writes; "
        "docs/dev/scripts.md describes its keys",
        path, Printable(ValidUtf8(ReadOrEmpty(path).substr(0, kMostQuoted))));
  }
  const int64_t steps = reports.empty() ? 0 : reports[0].num_steps;
  const int64_t needed = spec_.options.end_profile_step + 1;
  // The exit code of a shell's pipe says nothing about the script.
  const std::string said = Printable(LastErrorOrLine(FilesOf(request).ReadLogEnd(0)));
  const std::string words = said.empty()
                                ? "it has printed nothing"
                                : fmt::format("the last error or line of its output is: {}", said);
  const bool applied = !reports.empty() && reports[0].config_applied;
  if (steps == 0 && !names_config_ && !applied) {
    return fmt::format(
        "nothing shows that the script used the trial's config: it made no engine by "
        "deepspeed.initialize() in a Python that dsat reaches; add --deepspeed_config {} to the "
        "entrypoint, or let the script read os.environ[\"{}\"] and, without DeepSpeed, call "
        "dsat.report() after each step; {}",
        kConfigPlaceholder, kConfigVariable, words);
  }
  if (applied && steps == 0 && request.kind != TrialKind::kProfile)
    return fmt::format(
        "the script ended before its first optimizer step, as it does if its data have no whole "
        "batch of {} per rank; {}",
        request.ds_config.value(kMicroBatchKey + 1, int64_t{1}), words);
  if (request.kind == TrialKind::kProfile || steps == 0) {
    return fmt::format(
        "the command ended with code 0 but nothing was measured; {}; the script must train with an "
        "engine of deepspeed.initialize() in a Python that dsat's import hook reaches (if it sets "
        "PYTHONPATH, let it keep the value: PYTHONPATH=DIR:$PYTHONPATH), or call dsat.report() "
        "after each optimizer step",
        words);
  }
  if (steps < needed) {
    return fmt::format(
        "the script ended after {} of the {} optimizer steps that are needed: let it train longer, "
        "or lower --end-profile-step; {}",
        steps, needed, words);
  }
  return fmt::format(
      "the script ended after {} optimizer steps, before the measuring was complete: let it train "
      "until it is ended, and from step 0, not from a checkpoint; {}",
      steps, words);
}

Outcome CommandTarget::Classify(const LaunchRequest& request, const ExitReport& exit) {
  const std::vector<HookReport> reports = ReportsOf(request);
  if (!reports.empty() && !request.full_run) {
    int64_t& fed = fed_[MicroBatchOf(request)];  // A launch may crash before its first batch.
    fed = std::max(fed, reports[0].largest_batch);
  }
  given_.erase(request.dir);
  if (const auto outcome = OutcomeOf(request, reports)) return *outcome;
  if (request.kind == TrialKind::kProfile && std::exchange(runs_dry_, false)) {
    std::string why = reports.empty() ? "" : reports[0].error;
    if (why.empty()) why = LastErrorOrLine(FilesOf(request).ReadLogEnd(0));
    if (!reports.empty() && reports[0].recurs)
      return {TrialState::kFailed, Printable(why), /*recurs=*/true};
    return {TrialState::kFailed,
            "a launch measures the profile, because the dry run gives none: " + Printable(why)};
  }
  const bool ended_well = exit.first_failed_rank < 0 && !exit.killed_by_us;
  if (request.full_run && ended_well) return {TrialState::kSucceeded, ""};
  std::vector<std::string> logs;
  for (int64_t rank = 0; rank < std::ssize(PlaceCommands(request)); ++rank)
    logs.push_back(FilesOf(request).ReadLogEnd(rank));
  // A launcher may exit with code 0 although its ranks have failed.
  const Outcome outcome = ClassifyExit(exit, logs, starts_ranks_ ? "the command on host" : "rank");
  // The script may have caught that memory ran out, and gone on without a step.
  if (outcome.state == TrialState::kInfeasible) return outcome;
  if (exit.killed_by_us) return {TrialState::kStopped, WhyStuck(logs[0])};
  return ended_well ? Outcome{TrialState::kFailed, WhyNothing(request), /*recurs=*/true} : outcome;
}

}  // namespace

std::unique_ptr<LaunchTarget> MakeCommandTarget(const ExperimentSpec& spec) {
  std::string python = PythonFolder();
  CheckDeepSpeedCommand(spec, !python.empty());
  const int64_t start = spec.options.start_profile_step;
  const int64_t end = spec.options.end_profile_step;
  if (start >= end) {
    Throw(ErrorCode::kInvalidArgument,
          "start_profile_step is {} and end_profile_step {}; expected start < end: FLOPs are "
          "counted in step {}, which makes that one slow",
          start, end, start);
  }
  return std::make_unique<CommandTarget>(spec, std::move(python));
}

}  // namespace dsat
