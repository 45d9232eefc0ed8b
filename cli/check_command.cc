// An experiment that consists of a confirmation alone, and the comparison with metrics.json.
#include "cli/check_command.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/machine_facts.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "cli/search_commands.h"
#include "engine/config/batch.h"
#include "engine/config/ds_config.h"
#include "engine/config/strategies.h"
#include "searcher/hosts/placement.h"
#include "searcher/input/preflight.h"
#include "searcher/results.h"
#include "searcher/verdict.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// What metrics.json beside the configuration says; null if there is none.
Json ReadRecord(const CheckFlags& check) {
  const fs::path path = fs::absolute(check.ds_config).parent_path() / "metrics.json";
  return fs::exists(path) ? ReadJsonFile(path) : Json();
}

std::string TextAt(const Json& record, const char* pointer) {
  const Json* value = record.is_object() ? FindAtPointer(record, pointer) : nullptr;
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

ExperimentSpec MakeSpec(const CheckFlags& check, const Json& record) {
  const std::string config =
      check.config.empty() ? TextAt(record, "/experiment/config_path") : check.config;
  if (config.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "check: {}: there is no metrics.json beside it that names its experiment file; pass "
          "--config FILE",
          check.ds_config);
  }
  const bool recorded = check.config.empty() && check.model_dir.empty();
  std::vector<std::string> warnings;
  ExperimentSpec spec = ReadSpec(
      config, recorded ? TextAt(record, "/experiment/model_dir") : check.model_dir, &warnings);
  spec.method = "check";
  spec.candidate = ReadJsonFile(check.ds_config);
  if (!check.against.empty()) spec.ds_config = engine::ReadDsConfig(check.against);
  spec.options.confirm_rounds = check.rounds;
  const std::string recorded_metric = TextAt(record, "/experiment/metric");
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

// The recorded speed of the configuration, if it was recorded on this machine and for this model.
// The folder holds other configurations, too.
std::optional<double> RecordedSpeed(const Json& record, const ExperimentSpec& spec) {
  if (record.is_null() || TextAt(record, "/machine") != MachineName()) return std::nullopt;
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
  if (speed == nullptr || !speed->is_number() || speed->get<double>() <= 0) return std::nullopt;
  return speed->get<double>();
}

// The speed now over the recorded one, with what it means.
struct Drift {
  std::optional<double> of_recorded;  // nullopt: nothing was recorded on this machine.
  bool too_slow = false;
};

Drift Compare(const Json& record, const ExperimentSpec& spec, double speed, double tolerance) {
  const std::optional<double> recorded = RecordedSpeed(record, spec);
  if (!recorded) return {};
  const double part = speed / *recorded;
  return {.of_recorded = part, .too_slow = part < 1 - tolerance};
}

std::string Text(const CheckFlags& check, const Factor& factor, int64_t rounds,
                 const Drift& drift) {
  std::string text =
      fmt::format("{:.2f} times as fast as {}", factor.value,
                  check.against.empty() ? "the submitted configuration" : Printable(check.against));
  if (factor.has_interval())
    text += fmt::format(" (95 % interval {:.2f} to {:.2f})", factor.low, factor.high);
  text += fmt::format(", measured in {} alternating round{}\n", rounds, rounds == 1 ? "" : "s");
  if (!drift.of_recorded)
    return text + "no speed of this configuration and model was recorded on this machine\n";
  return text + fmt::format("its speed is {:.1f} % of what was recorded{}\n",
                            100 * *drift.of_recorded,
                            drift.too_slow
                                ? fmt::format(": more than {:.3g} % slower", 100 * check.tolerance)
                                : "");
}

}  // namespace

int RunCommand(const Flags& flags, const CheckFlags& check) {
  RunnerOptions options = MakeRunnerOptions(check.run);
  const Json record = ReadRecord(check);
  ExperimentSpec spec = MakeSpec(check, record);
  PlanSlurm(spec, &options);
  CheckSpec(spec, AreElsewhere(options.machines.hosts));
  if (IsBuiltin(spec)) {
    std::vector<std::string> warnings;
    engine::ParseDsConfig(spec.candidate, check.ds_config, spec.slots_per_trial, &warnings);
  } else {
    engine::ResolveBatchSizes(spec.candidate, check.ds_config, spec.slots_per_trial);
  }
  CheckHosts(spec, options.machines.hosts);
  spec.machine = MachineFacts(spec, options.machines.hosts);
  CheckRunnable(spec, check.run, options);
  Store store = Store::Open(flags.db, Store::Mode::kCreate);
  Experiment experiment = Experiment::Create(store, spec);
  options.out_dir = OutDir(check.run, experiment);
  if (RunShown(options, experiment) == ExperimentState::kActive) {
    Say(stderr, "\nInterrupted: a check does not continue; run the same command again\n");
    return kExitInterrupted;
  }
  const Confirmation* confirmation = experiment.search().confirmation();
  if (confirmation == nullptr || confirmation->Arms().size() < 2) {
    Throw(ErrorCode::kFailedPrecondition, "check: the two could not be compared: {}",
          experiment.search().FailureReason().empty() ? "one of them did not run (dsat show)"
                                                      : experiment.search().FailureReason());
  }
  const TrialId base = confirmation->Arms()[0], candidate = confirmation->Arms()[1];
  const Factor factor = confirmation->Compare(candidate, base);
  const double speed = confirmation->MeanSpeed(candidate);
  const Drift drift = Compare(record, spec, speed, check.tolerance);
  if (flags.json) {
    const Json json{{"experiment", experiment.id()},
                    {"factor", ToJson(factor)},
                    {"rounds", confirmation->NumRounds()},
                    {"speed", speed},
                    {"part_of_recorded", drift.of_recorded ? Json(*drift.of_recorded) : Json()},
                    {"too_slow", drift.too_slow}};
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}", Text(check, factor, confirmation->NumRounds(), drift));
  }
  return drift.too_slow ? kExitFailure : 0;
}

}  // namespace dsat::cli
