// The results of a search.
#include "searcher/results.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/version.h"
#include "engine/config/keys.h"
#include "engine/config/settings.h"
#include "proto/launch_settings.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/command/trainer_command.h"
#include "searcher/search/outlook.h"
#include "searcher/search/verdict.h"

namespace dsat {
namespace {

Json MetricsWithUnits(const Measurement& measurement) {
  Json json = ToJson(measurement);
  for (auto& [name, metric] : json.items())
    metric["unit"] = MetricUnit(name);
  return json;
}

// One trial of metrics.json, null if there is none or it has not measured the metric.
Json TrialSummary(const Search& search, const std::optional<TrialId>& id) {
  if (!id) return nullptr;
  const PointResult* best = BestPoint(search.trials().at(*id), search.spec().options.metric);
  if (best == nullptr) return nullptr;
  return {{"trial", *id},
          {"micro_batch_size", best->point.micro_batch_size},
          {"accumulation_steps", best->point.accumulation_steps},
          {"metrics", MetricsWithUnits(best->measurement)},
          {"rank_peak_bytes", best->rank_peak_bytes}};
}

Json CountByState(const Search& search) {
  Json counts = Json::object();
  for (const TrialState state :
       {TrialState::kRunning, TrialState::kSucceeded, TrialState::kInfeasible, TrialState::kFailed,
        TrialState::kStopped}) {
    counts[ToString(state)] = 0;
  }
  for (const auto& [id, trial] : search.trials()) {
    Json& count = counts[ToString(trial.state)];
    count = count.get<int64_t>() + 1;
  }
  return counts;
}

// One field of a CSV line, in quotes if necessary.
std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string CsvField(const Json& value) {
  if (value.is_null()) return "";
  return CsvField(value.is_string() ? value.get<std::string>() : value.dump());
}

template <typename Cells>
std::string CsvLine(const Cells& cells) {
  std::string line;
  for (const auto& cell : cells)
    line += CsvField(cell) + ",";
  line.pop_back();
  return line + "\r\n";
}

// The user's command with the arguments of `ds_config`, as it runs without dsat; empty if dsat has
// to start its ranks.
std::vector<std::string> StandaloneCommand(const ExperimentSpec& spec, const Json& ds_config,
                                           const std::string& config_path) {
  CommandWords command(ArgvForTrial(spec, ds_config, config_path, std::nullopt));
  const std::string num_ranks = std::to_string(spec.slots_per_trial);
  if (const auto launcher = FindRankLauncher(command)) {
    if (!launcher->num_ranks)
      command.InsertBehind(launcher->args_begin - 1, {launcher->ranks_flag, num_ranks});
    return command.Changed();
  }
  // torchrun starts a script or a module, and takes none of Python's own options.
  std::vector<size_t> pythons;
  for (size_t i = 0; i + 1 < command.words().size(); ++i) {
    const std::string& next = command.words()[i + 1].text;
    if (IsPython(command.words()[i].text) && (next.ends_with(".py") || next == "-m"))
      pythons.push_back(i);
  }
  if (pythons.size() != 1) return {};
  command.InsertBehind(
      pythons[0], {"-m", "torch.distributed.run", "--standalone", "--nproc_per_node", num_ranks});
  return command.Changed();
}

// Without the trainer's arguments that are as the script sets them itself.
Json WithoutOwnArguments(const Search& search, Json config) {
  const Json trainer = TrainerArgumentsOf(config);
  if (!search.profile() || trainer.empty()) return config;
  Json& section = config[kLaunchSection];
  for (const auto& [name, value] : trainer.items()) {
    if (search.profile()->trainer.value(name, Json()) == value) section["trainer"].erase(name);
  }
  if (section["trainer"].empty()) section.erase("trainer");
  if (section.empty()) config.erase(kLaunchSection);
  return config;
}

// The value that `key` has without being given; null if it is not to be stated. `release` is that
// of the script's DeepSpeed; empty if unknown.
Json StatedValue(const engine::Key& key, const ExperimentSpec& spec, const std::vector<Knob>& knobs,
                 const engine::Settings& settings, const std::string& release) {
  const std::string pointer = key.pointer;
  const bool is_changed = *key.changed != '\0';
  const bool is_knob = std::ranges::find(knobs, pointer, &Knob::pointer) != knobs.end();
  if (!is_changed && !is_knob && key.fallback_stage == engine::kNumZeroStages) return nullptr;
  if (settings.Has(pointer) || settings.stage() < key.from_stage) return nullptr;
  if (!settings.Has(pointer.substr(0, pointer.rfind('/'))) && pointer.rfind('/') > 0)
    return nullptr;
  if (!IsBuiltin(spec)) {
    const bool is_known = release.empty() || !engine::NameIn(release, key).empty();
    if (key.own || !is_known || (is_changed && release.empty())) return nullptr;
    if (pointer == "/gradient_clipping" && RunsTrainer(spec)) return nullptr;
    if (is_changed && engine::IsOlder(release, key.changed)) return Json::parse(key.earlier);
  }
  return settings.Get(pointer);
}

// A resolved config with stated defaults.
Json StatedConfig(const Search& search, const Json& config) {
  const Json* stage = FindAtPointer(config, kStageKey);
  std::vector<Knob> knobs;
  for (size_t i = 0; search.space() && i < search.space()->stages.size(); ++i) {
    const StageSpace& place = search.space()->stages[i];
    if (stage != nullptr && *stage == place.stage)
      knobs.insert(knobs.end(), place.knobs.begin(), place.knobs.end());
  }
  return WithStatedDefaults(search.spec(), knobs, WithoutOwnArguments(search, config));
}

// The content of metrics.json (results.h).
Json MetricsJson(const Experiment& experiment, const Verdict& verdict, const Json& ds_config) {
  const Search& search = experiment.search();
  const ExperimentSpec& spec = search.spec();
  return {{"experiment",
           {{"id", experiment.id()},
            {"name", spec.name},
            {"config_path", spec.config_path},
            {"model_dir", spec.model_dir},
            {"hyperparameters", spec.hyperparameters},
            {"ds_config", spec.ds_config},
            {"method", spec.method},
            {"metric", spec.options.metric},
            {"unit", MetricUnit(spec.options.metric)},
            {"random_seed", spec.options.random_seed},
            {"state", ToString(experiment.state())},
            {"reason", experiment.reason()}}},
          {"machine", MachineOf(spec)},
          {"versions", VersionsOf(spec)},
          {"best_trial", TrialSummary(search, verdict.pick)},
          {"ds_config", ds_config},
          {"submitted_trial", TrialSummary(search, search.Submitted())},
          {"soak_trial", TrialSummary(search, verdict.soak)},
          {"factor_over_submitted", verdict.factor ? ToJson(*verdict.factor) : Json()},
          {"verdict", ToJson(verdict)},
          {"trials", CountByState(search)},
          {"model_profile", search.profile() ? ToJson(*search.profile()) : Json()}};
}

}  // namespace

std::optional<Json> BestConfig(const Search& search) {
  const std::optional<TrialId> pick = VerdictOf(search).pick;
  return pick ? std::optional(StatedConfig(search, search.BestConfigOf(*pick))) : std::nullopt;
}

static Json WithScript(const ExperimentSpec& spec, const Json& config) {
  return IsBuiltin(spec) ? config : ConfigForScript(spec, config, /*has_hook=*/false);
}

std::optional<Json> PredictedConfig(const Search& search) {
  const bool has_tried = std::ranges::any_of(search.trials(), [](const auto& entry) {
    const Trial& trial = entry.second;
    return trial.kind != TrialKind::kProfile && trial.state != TrialState::kStopped;
  });
  if (has_tried || !search.space()) return std::nullopt;
  try {
    const std::vector<EstimatedConfig> best = LookAhead(search, 1).best;
    if (best.empty()) return std::nullopt;
    return WithScript(search.spec(), StatedConfig(search, best.front().ds_config));
  } catch (const Error&) {  // The model's files are not there any more.
    return std::nullopt;
  }
}

Json ConfigToKeep(const Search& search, TrialId id) {
  return WithScript(search.spec(), StatedConfig(search, search.BestConfigOf(id)));
}

std::string MachineOf(const ExperimentSpec& spec) {
  std::string names = spec.machine.value("host", "");
  const Json hosts = spec.machine.value("hosts", Json::object());
  for (const auto& host : hosts.items())
    names += (names.empty() ? "" : ", ") + host.key();
  return names;
}

Json VersionsOf(const ExperimentSpec& spec) {
  Json versions{{"dsat", spec.machine.value("dsat", kVersion)}};
  const Json packages = spec.machine.value("packages", Json());
  if (packages.is_object()) versions.update(packages);
  return versions;
}

Json WithStatedDefaults(const ExperimentSpec& spec, const std::vector<Knob>& knobs,
                        Json ds_config) {
  const engine::Settings settings(ds_config, "ds_config");
  const std::string release = VersionsOf(spec).value("deepspeed", "");
  for (const engine::Key& key : engine::Keys()) {
    const Json value = StatedValue(key, spec, knobs, settings, release);
    if (!value.is_null()) SetAtPointer(ds_config, key.pointer, value);
  }
  return ds_config;
}

void WriteResults(const Experiment& experiment, const std::string& out_dir, bool waits_for_disk) {
  const auto write = [&](const std::string& name, const std::string& text) {
    WriteFileAtomic(out_dir + "/" + name, text + "\n", waits_for_disk);
  };
  const auto write_json = [&](const std::string& name, const Json& json) {
    write(name, json.dump(2));
  };
  const Search& search = experiment.search();
  const Verdict verdict = VerdictOf(search);
  // The config is written first, so that it exists when the metrics do.
  Json config;
  if (verdict.pick) {
    config = ConfigToKeep(search, *verdict.pick);
  } else if (const std::optional<Json> predicted = PredictedConfig(search)) {
    config = *predicted;
  }
  if (!config.is_null()) {
    const bool by_hook = verdict.pick && ByHook(search, *verdict.pick);
    write_json("ds_config.json", config);
    write("command.txt", ProductionCommand(search.spec(), config, out_dir, by_hook));
  } else {  // The former answer has dropped out.
    std::filesystem::remove(out_dir + "/ds_config.json");
    std::filesystem::remove(out_dir + "/command.txt");
  }
  for (const char* name : {"fastest", "safest"}) {
    const std::string file = fmt::format("ds_config.{}.json", name);
    const auto found = std::ranges::find(verdict.alternatives, name, &Alternative::name);
    if (found == verdict.alternatives.end()) {
      std::filesystem::remove(out_dir + "/" + file);  // It may be of an earlier answer.
    } else {
      write_json(file, ConfigToKeep(search, found->trial));
    }
  }
  write_json("metrics.json", MetricsJson(experiment, verdict, config));
}

bool ByHook(const Search& search, TrialId id) {
  const PointResult* best = BestPoint(search.trials().at(id), search.spec().options.metric);
  return best != nullptr && best->by_hook;
}

std::string ProductionCommand(const ExperimentSpec& spec, const Json& ds_config,
                              const std::string& out_dir, bool by_hook) {
  const std::string config = std::filesystem::absolute(out_dir) / "ds_config.json";
  const std::string hosts = spec.machine.value("host_options", "");
  std::vector<std::string> argv;
  if (!IsBuiltin(spec) && NamesConfig(spec) && hosts.empty() && !by_hook)
    argv = StandaloneCommand(spec, ds_config, config);
  if (argv.empty()) {
    const bool is_beside = std::filesystem::path(spec.config_path).parent_path() == spec.model_dir;
    return fmt::format("dsat train {}{} --ds-config {}{}", ShellWord(spec.config_path),
                       is_beside ? "" : fmt::format(" {}", ShellWord(spec.model_dir)),
                       ShellWord(config), hosts);
  }
  std::string text = fmt::format("cd {} && ", ShellWord(spec.model_dir));
  for (const auto& [name, value] : VariablesOf(ds_config, spec.environment))
    text += fmt::format("{}={} ", name, ShellWord(value));
  text += fmt::format("{}={}", kConfigVariable, ShellWord(config));
  for (const std::string& word : argv)
    text += fmt::format(" {}", ShellWord(word));
  return text;
}

std::string ExportTrials(const Store& store, ExperimentId id, const std::string& format) {
  if (format != "csv" && format != "json") {
    Throw(ErrorCode::kInvalidArgument, "export: format \"{}\"; expected csv or json", format);
  }
  store.GetExperiment(id);
  const QueryResult trials =
      store.Query(fmt::format("SELECT m.*, t.asked_at, t.ended_at FROM trial_metrics AS m"
                              " JOIN trials AS t ON t.experiment = m.experiment AND t.id = m.trial"
                              " WHERE m.experiment = {} ORDER BY m.trial",
                              id));
  if (format == "csv") {
    std::string text = CsvLine(trials.columns);
    for (const std::vector<Json>& row : trials.rows)
      text += CsvLine(row);
    return text;
  }
  Json rows = RowsAsJson(trials);
  for (Json& row : rows)
    for (const char* column : {"assignment", "ds_config"})
      row[column] = Json::parse(row[column].get<std::string>());
  return rows.dump(2) + "\n";
}

Json RowsAsJson(const QueryResult& result) {
  Json rows = Json::array();
  for (const std::vector<Json>& row : result.rows) {
    Json object = Json::object();
    for (size_t i = 0; i < row.size(); ++i) {
      std::string key = result.columns[i];
      for (int number = 2; object.contains(key); ++number)
        key = fmt::format("{}_{}", result.columns[i], number);
      object[key] = row[i];
    }
    rows.push_back(std::move(object));
  }
  return rows;
}

}  // namespace dsat
