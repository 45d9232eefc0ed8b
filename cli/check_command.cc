// An experiment that consists of a confirmation alone, and the comparison with metrics.json.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/statistics.h"
#include "cli/commands.h"
#include "cli/machine_facts.h"
#include "cli/output/output.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "cli/status_line.h"
#include "engine/config/batch.h"
#include "engine/config/ds_config.h"
#include "searcher/hosts/slots.h"
#include "searcher/input/preflight.h"
#include "searcher/results.h"
#include "searcher/search/verdict.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

std::string RecordPath(const CheckFlags& check) {
  return (fs::absolute(check.ds_config).parent_path() / "metrics.json").string();
}

std::string TextAt(const Json& record, const char* pointer) {
  const Json* value = FindAtPointer(record, pointer);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// A path that the record names, if it exists.
std::string RecordedPath(const CheckFlags& check, const Json& record, const char* pointer,
                         const char* option) {
  const std::string path = TextAt(record, pointer);
  if (!path.empty() && !fs::exists(path)) {
    Throw(ErrorCode::kNotFound, "{}: {} is {}, which does not exist any more; pass {}",
          RecordPath(check), pointer, Printable(path), option);
  }
  return path;
}

// The ds_config.json of the newest search, which is not a check.
std::string NewestAnswer(const std::string& db) {
  Store store = Store::Open(db, Store::Mode::kReadOnly);
  const ExperimentId id = store.FindExperiment("");
  if (store.GetExperiment(id).method == "check")
    Throw(ErrorCode::kNotFound, "check: {} has no search; name a configuration", db);
  const std::string path = ResultsFolder(Experiment::Open(store, id)) + "/ds_config.json";
  if (fs::exists(path)) return path;
  Throw(ErrorCode::kNotFound,
        "check: {} of experiment {}, the newest search, does not exist; name another "
        "configuration, or write this one: dsat best {} --out DIR",
        path, id, id);
}

ExperimentSpec MakeSpec(const CheckFlags& check, const Json& record) {
  const Json candidate = ReadJsonFile(check.ds_config);
  const std::string config =
      check.config.empty() ? RecordedPath(check, record, "/experiment/config_path", "--config FILE")
                           : check.config;
  if (config.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "check: {}: there is no metrics.json beside it that names its experiment file; pass "
          "--config FILE",
          check.ds_config);
  }
  const bool recorded = check.config.empty() && check.model_dir.empty();
  ExperimentSpec spec = ReadSpec(
      config, recorded ? RecordedPath(check, record, "/experiment/model_dir", "--model-dir DIR")
                       : check.model_dir);
  spec.method = "check";
  spec.candidate = candidate;
  if (!check.against.empty()) UseDsConfig(check.against, spec);
  spec.options.confirm_rounds = check.rounds;
  const std::string recorded_metric = TextAt(record, "/experiment/metric");
  const std::vector<std::string>& metrics = SearchMetrics();
  if (check.metric.empty() && !recorded_metric.empty() &&
      std::ranges::find(metrics, recorded_metric) == metrics.end()) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: /experiment/metric is \"{}\"; expected one of {}, or pass --metric",
          RecordPath(check), Printable(recorded_metric), fmt::join(metrics, ", "));
  }
  const std::string& metric = check.metric.empty() ? recorded_metric : check.metric;
  if (!metric.empty()) spec.options.metric = metric;
  spec.start_dir = fs::current_path().string();
  spec.out_dir = check.run.out_dir;
  const fs::path folder = fs::absolute(check.ds_config).parent_path();
  if (!spec.out_dir.empty() && fs::weakly_canonical(spec.out_dir) == fs::weakly_canonical(folder)) {
    Throw(ErrorCode::kInvalidArgument,
          "--out: {}: this folder holds the configuration and its record, which the check would "
          "replace; pass another one",
          spec.out_dir);
  }
  return spec;
}

// The logarithm of the recorded speed of the configuration, if it was recorded on the machine, or
// the hosts, of the check, for this model and by this metric. The folder holds other
// configurations, too. REQUIRES: spec.machine is known.
std::optional<Center> RecordedSpeed(const CheckFlags& check, const Json& record,
                                    const ExperimentSpec& spec) {
  const std::string machine = MachineOf(spec);
  if (machine.empty() || TextAt(record, "/machine") != machine) return std::nullopt;
  if (record.value("ds_config", spec.candidate) != spec.candidate) return std::nullopt;
  if (TextAt(record, "/experiment/metric") != spec.options.metric) return std::nullopt;
  const Json* model = FindAtPointer(record, "/experiment/hyperparameters");
  if (model != nullptr && *model != spec.hyperparameters) {
    Log(LogLevel::kWarn, fmt::format("{}: its hyperparameters have changed since the search, so "
                                     "that the recorded speed says nothing",
                                     spec.config_path));
    return std::nullopt;
  }
  const Json* speed = FindAtPointer(record, "/verdict/speed");
  if (speed == nullptr || speed->is_null()) return std::nullopt;
  if (!speed->is_number() || speed->get<double>() <= 0) {
    Throw(ErrorCode::kInvalidArgument, "{}: /verdict/speed is {}; expected a positive number",
          RecordPath(check), speed->dump());
  }
  Center recorded{.mean = std::log(speed->get<double>())};
  const Json* error = FindAtPointer(record, "/verdict/speed_error");
  const Json* dof = FindAtPointer(record, "/verdict/speed_dof");
  if (error != nullptr && dof != nullptr && error->is_number() && dof->is_number_integer()) {
    recorded.variance = error->get<double>() * error->get<double>();
    recorded.dof = dof->get<int64_t>();
  }
  return recorded;
}

// The result of the rounds. A speed is that of SpeedOf.
struct Finding {
  TrialId candidate = 0;
  std::optional<Factor> factor;            // nullopt: the submitted configuration does not fit.
  std::optional<Factor> of_recorded;       // The candidate's speed now over the recorded one.
  std::optional<double> base_of_recorded;  // The same of the submitted configuration.
  bool base_changed = false;               // Since the search that recorded it.
  bool too_slow = false;
};

Finding Find(const Experiment& experiment, const Json& record, std::optional<Center> recorded,
             const CheckFlags& check) {
  const Search& search = experiment.search();
  const Confirmation* confirmation = search.confirmation();
  const auto arms = confirmation == nullptr ? std::vector<TrialId>() : confirmation->Arms();
  const bool is_misfit = search.Submitted() &&
                         search.trials().at(*search.Submitted()).state == TrialState::kInfeasible;
  const bool is_alone = arms.size() == 1 && is_misfit && check.against.empty();
  if ((arms.size() < 2 && !is_alone) || confirmation->NumRounds() == 0) {
    std::string reason = search.FailureReason();
    for (const auto& [id, trial] : search.trials()) {
      const bool is_over =
          trial.state != TrialState::kSucceeded && trial.kind != TrialKind::kConfirm;
      if (reason.empty() && is_over)
        reason = fmt::format("trial {} {}: {}", id, ToString(trial.state), trial.reason);
    }
    for (const auto& [id, why] : search.Dropped()) {
      if (reason.empty()) reason = fmt::format("trial {} dropped out: {}", id, why);
    }
    Throw(ErrorCode::kFailedPrecondition, "check: the two could not be compared: {} (dsat show {})",
          reason, experiment.id());
  }
  Finding found;
  found.candidate = arms.back();
  if (!is_alone) found.factor = confirmation->Compare(found.candidate, arms[0]);
  const Json* submitted = FindAtPointer(record, "/experiment/ds_config");
  found.base_changed = submitted != nullptr && *submitted != search.spec().ds_config;
  if (!recorded) return found;
  const Factor part =
      RatioOfSpeeds(confirmation->LogSpeed(found.candidate), *recorded, confirmation->NumRounds());
  found.of_recorded = part;
  found.too_slow = part.value < 1 - check.tolerance && (!part.has_interval() || part.high < 1);
  const Json* other = FindAtPointer(record, "/verdict/nothing_better");
  const Json* value = FindAtPointer(record, "/factor_over_submitted/value");
  const bool is_base = other != nullptr && *other == true;
  const bool is_same = submitted != nullptr && !found.base_changed;
  if (found.factor && is_same && value != nullptr && value->is_number()) {
    const double factor = is_base ? 1 : value->get<double>();
    found.base_of_recorded = confirmation->MeanSpeed(arms[0]) * factor / std::exp(recorded->mean);
  }
  return found;
}

// Why the submitted configuration did not run.
std::string BaseReason(const Search& search) {
  return search.trials().at(*search.Submitted()).reason;
}

std::string Text(const CheckFlags& check, const Search& search, const Finding& found) {
  const std::string base = !check.against.empty() ? Printable(check.against)
                           : found.base_changed   ? "the present ds_config (another was submitted)"
                                                  : "the submitted configuration";
  const std::string how = "measured in " + Counted(search.confirmation()->NumRounds(),
                                                   found.factor ? "alternating round" : "round");
  std::string text;
  if (!found.factor) {
    text = fmt::format("{} does not fit: {}\n", base, Printable(BaseReason(search)));
  } else if (found.factor->has_interval() && found.factor->low <= 1 && found.factor->high >= 1) {
    text = fmt::format("it cannot be told from {}: {:.2f} times as fast{}, {}\n", base,
                       found.factor->value, IntervalText(*found.factor), how);
  } else {
    text = fmt::format("{:.2f} times as fast as {}{}, {}\n", found.factor->value, base,
                       IntervalText(*found.factor), how);
  }
  if (!found.of_recorded)
    return text +
           fmt::format("no {} of this configuration and model was recorded on this machine\n",
                       search.spec().options.metric);
  const Factor& part = *found.of_recorded;
  text += fmt::format("its speed is {:.1f} % of what was recorded", 100 * part.value);
  if (part.has_interval())
    text += fmt::format(" (95 % interval {:.1f} to {:.1f} %)", 100 * part.low, 100 * part.high);
  if (!found.factor) text += ", " + how;
  if (found.too_slow) text += fmt::format(": more than {:.3g} % slower", 100 * check.tolerance);
  text += "\n";
  if (found.base_of_recorded)
    text += fmt::format("the speed of {} is {:.1f} % of what was recorded\n", base,
                        100 * *found.base_of_recorded);
  return text;
}

}  // namespace

int RunCommand(const Flags& flags, const CheckFlags& given) {
  CheckFlags check = given;
  if (check.ds_config.empty()) check.ds_config = NewestAnswer(flags.db);
  RunnerOptions options = MakeRunnerOptions(check.run);
  const std::string path = RecordPath(check);
  const Json record = fs::exists(path) ? ReadJsonFile(path) : Json();
  ExperimentSpec spec = MakeSpec(check, record);
  PlanSlurm(spec, &options);
  Warn(CheckSpec(spec, AreElsewhere(options.machines.hosts)));
  if (IsBuiltin(spec)) {
    std::vector<std::string> warnings;
    engine::ParseDsConfig(spec.candidate, check.ds_config, spec.slots_per_trial, &warnings);
    Warn(warnings);
  } else {
    engine::ResolveBatchSizes(spec.candidate, check.ds_config, spec.slots_per_trial);
  }
  CheckHosts(spec, options.machines.hosts);
  spec.machine = MachineFacts(spec, options.machines.hosts);
  const std::optional<Center> recorded = RecordedSpeed(check, record, spec);
  CheckRunnable(spec, check.run, options);
  Store store = Store::Open(flags.db, Store::Mode::kCreate);
  Experiment experiment = Experiment::Create(store, spec);
  options.out_dir = OutDir(check.run, experiment);
  if (RunShown(options, experiment) == ExperimentState::kActive) {
    Say(stderr, "\nInterrupted: a check does not continue; run the same command again\n");
    return kExitInterrupted;
  }
  const Search& search = experiment.search();
  const Finding found = Find(experiment, record, recorded, check);
  if (flags.json) {
    const auto json_of = [](const std::optional<Factor>& factor) {
      return factor ? ToJson(*factor) : Json();
    };
    const Json json{
        {"experiment", experiment.id()},
        {"factor", json_of(found.factor)},
        {"rounds", search.confirmation()->NumRounds()},
        {"speed", search.confirmation()->MeanSpeed(found.candidate)},
        {"part_of_recorded", json_of(found.of_recorded)},
        {"base_part_of_recorded", found.base_of_recorded ? Json(*found.base_of_recorded) : Json()},
        {"base_does_not_fit", found.factor ? Json() : Json(BaseReason(search))},
        {"too_slow", found.too_slow}};
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}", Text(check, search, found));
  }
  return found.too_slow ? kExitFailure : 0;
}

}  // namespace dsat::cli
