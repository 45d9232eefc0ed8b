// dsat space: a search that ends once the model's profile is known, and what is predicted then.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/table.h"
#include "base/temporary_folder.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/machine_facts.h"
#include "cli/output/output.h"
#include "cli/progress.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "cli/status_line.h"
#include "engine/config/batch.h"
#include "engine/config/keys.h"
#include "profiler/effective_key.h"
#include "profiler/places.h"
#include "profiler/planner.h"
#include "proto/launch_settings.h"
#include "searcher/command/import_hook.h"
#include "searcher/hosts/slots.h"
#include "searcher/input/objective.h"
#include "searcher/input/preflight.h"
#include "searcher/runner.h"
#include "searcher/scripts/device_memory.h"
#include "searcher/scripts/hook_report.h"
#include "searcher/search/outlook.h"
#include "searcher/search/search.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNumBest = 10;

using engine::Key;

std::string Count(double number) {
  return number < 1e15 ? fmt::format("{}", std::llround(number))
                       : fmt::format("about {:.2g}", number);
}

std::string SizesText(const std::vector<int64_t>& sizes) {
  if (sizes.empty()) return "none is legal";
  if (sizes.size() <= 10) return fmt::format("{}", fmt::join(sizes, " "));
  return fmt::format("{} sizes from {} to {}", sizes.size(), sizes.front(), sizes.back());
}

std::string ValuesText(const std::vector<Json>& values) {
  const auto text_of = [](const Json& value) { return value.dump(); };
  return fmt::format("{}", fmt::join(values | std::views::transform(text_of), ", "));
}

bool HasKnob(const StageSpace& stage, const std::string& pointer) {
  return std::ranges::find(stage.knobs, pointer, &Knob::pointer) != stage.knobs.end();
}

bool IsRefused(const StageSpace& stage) {
  return stage.approx_max_micro_batch == 0 && stage.forecasts.empty();
}

// "offload_optimizer/device="cpu" ...": the keys after their section of the top level.
std::string PlaceText(const Assignment& settings) {
  const auto text_of = [](const auto& setting) {
    const auto& [pointer, value] = setting;
    return fmt::format("{}={}", pointer.substr(pointer.find('/', 1) + 1), value.dump());
  };
  return fmt::format("{}", fmt::join(settings | std::views::transform(text_of), " "));
}

std::string StageTable(const SearchSpace& space, const Outlook& outlook, size_t columns) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < space.stages.size(); ++i) {
    const StageSpace& stage = space.stages[i];
    double combinations = 1;
    for (const Knob& knob : stage.knobs)
      combinations *= static_cast<double>(knob.values.size());
    rows.push_back({std::to_string(stage.stage), Count(combinations), Count(outlook.num_configs[i]),
                    SizesText(outlook.sizes[i]), PlaceText(stage.settings)});
  }
  return FormatTable(
      {"stage", "combinations of keys", "configurations", "micro-batch sizes", "settings"}, rows,
      columns);
}

// Each key with its values once, and the stages that have them.
std::string KeyTable(const SearchSpace& space, size_t columns) {
  std::vector<std::vector<std::string>> rows;
  for (const StageSpace& stage : space.stages) {
    for (const Knob& knob : stage.knobs) {
      const std::string name = NameOfPointer(knob.pointer), values = ValuesText(knob.values);
      const auto same = std::ranges::find_if(rows, [&](const std::vector<std::string>& row) {
        return row[0] == name && row[2] == values;
      });
      if (same == rows.end()) {
        rows.push_back({name, std::to_string(stage.stage), values});
      } else if (!(*same)[1].ends_with(std::to_string(stage.stage))) {
        (*same)[1] += fmt::format(" {}", stage.stage);
      }
    }
  }
  if (rows.empty()) return "no key is searched\n";
  return FormatTable({"key", "stages", "values"}, rows, columns);
}

std::string SizeText(const Search& search, const Outlook& outlook) {
  const double all = std::accumulate(outlook.num_configs.begin(), outlook.num_configs.end(), 0.0);
  std::string text = fmt::format("configurations: {}", Count(all));
  if (all > outlook.num_candidates && search.spec().method == "auto")
    text += fmt::format(
        "; auto considers {} of them, those next to the submitted one and others "
        "that are drawn",
        Count(outlook.num_candidates));
  text += "\n";
  const SearchSpace& space = *search.space();
  if (space.samples_per_step > 0)
    text += fmt::format("a step has {} samples on a data-parallel rank\n", space.samples_per_step);
  for (const std::string& condition : search.spec().where)
    text += fmt::format("where: {}\n", Printable(condition));
  return text;
}

std::string BestTable(const Search& search, const Outlook& outlook, size_t columns) {
  if (outlook.best.empty()) return "No configuration of the space is predicted to fit.\n";
  std::vector<std::vector<std::string>> rows;
  for (const EstimatedConfig& config : outlook.best) {
    const auto text = [&](const char* pointer) {
      const Json* value = FindAtPointer(config.ds_config, pointer);
      return value == nullptr ? "" : value->dump();
    };
    const double samples = FindAtPointer(config.ds_config, "/train_batch_size")->get<double>();
    const bool is_timed = config.step_ms > 0;
    rows.push_back({text(kStageKey), text(kMicroBatchKey), text(kAccumulationKey),
                    HumanBytes(config.predicted.device.peak_bytes),
                    is_timed ? fmt::format("{:.4g} ms", config.step_ms) : "",
                    is_timed ? fmt::format("{:.4g}", 1e3 * samples / config.step_ms)
                             : fmt::format("{:.3f} x the first", 1 / config.factor),
                    SettingsText(config.assignment)});
  }
  const bool exact = outlook.best[0].predicted.exact;
  const bool ran_dry = !search.profile()->dry_places.empty();
  return fmt::format("best configurations as predicted, not measured{}\n",
                     exact     ? ""
                     : ran_dry ? ", by a dry run"
                               : "; memory is computed by formulas") +
         FormatTable(
             {"stage", "micro-batch", "accumulation", "memory", "step", "samples/s", "settings"},
             rows, columns) +
         (search.spec().method == "auto"
              ? ""
              : fmt::format("by the models of auto; {} does not use them\n", search.spec().method));
}

// Stages that the engine refuses and keys of the table that are not searched.
std::vector<LeftOut> LeftOutByTable(const Search& search) {
  const SearchSpace& space = *search.space();
  std::vector<LeftOut> left_out;
  for (const StageSpace& stage : space.stages) {
    if (IsRefused(stage))
      left_out.push_back({fmt::format("stage {}", stage.stage), "the configuration is refused"});
  }
  ExperimentSpec allowed = search.spec();
  allowed.options.allow_semantic = true;
  for (const Key& key : engine::Keys()) {
    const auto users = search.spec().search_space.find(key.pointer);
    const bool is_users = users != search.spec().search_space.end();
    const bool may_be_alone = key.several_ranks && search.spec().slots_per_trial == 1;
    if (key.key_class == engine::KeyClass::kSemantic && !search.spec().options.allow_semantic &&
        !is_users && !may_be_alone && IsSearchedWidely(key, allowed))
      left_out.push_back({key.pointer, "it changes what is learned; --allow semantic searches it"});
    const bool is_listed = key.searched_from < engine::kNumZeroStages ||
                           key.published_from < engine::kNumZeroStages || is_users;
    if (!is_listed || key.pointer == std::string_view(kMicroBatchKey)) continue;
    std::set<int> with, without;
    for (const StageSpace& stage : space.stages)
      (HasKnob(stage, key.pointer) ? with : without).insert(stage.stage);
    for (const int stage : with)
      without.erase(stage);
    if (without.empty()) continue;
    std::string why = fmt::format("it is searched from stage {} on", key.searched_from);
    if (key.searched_from == engine::kNumZeroStages) why = "only --compat determined searches it";
    if (*without.rbegin() < key.from_stage)
      why = fmt::format("it has no effect below stage {}", key.from_stage);
    if (is_users && users->is_array() && users->size() == 1) why = "search_space has one value";
    if (may_be_alone && !HasEffect(key, search.spec(), *without.rbegin()))
      why = "it has no effect on one rank";
    const std::string where =
        fmt::format(" at stage{} {}", without.size() == 1 ? "" : "s", fmt::join(without, ", "));
    left_out.push_back({key.pointer + (with.empty() ? "" : where), why});
  }
  if (search.spec().options.space == "published")
    left_out.push_back({"activation checkpointing, offload and the keys of stage 3",
                        "--space wide searches them"});
  return left_out;
}

std::vector<LeftOut> AllLeftOut(const Search& search) {
  std::vector<LeftOut> all = LeftOutByTable(search);
  const std::vector<LeftOut>& by_prediction = search.space()->left_out;
  all.insert(all.end(), by_prediction.begin(), by_prediction.end());
  return all;
}

// One line for each reason.
std::string LeftOutLines(const Search& search) {
  std::vector<LeftOut> lines;
  for (const LeftOut& left_out : AllLeftOut(search)) {
    const auto same = std::ranges::find(lines, left_out.why, &LeftOut::why);
    if (same == lines.end()) {
      lines.push_back(left_out);
    } else {
      same->what += "; " + left_out.what;
    }
  }
  std::string text;
  for (const LeftOut& line : lines)
    text += fmt::format("left out: {}: {}\n", line.what, Printable(line.why));
  return text;
}

// The places with their sizes, the keys with their values, the size of the space, what is left out
// and the most promising configurations. Lines are wrapped at `columns`; 0 = no limit.
std::string SpaceText(const Search& search, const Outlook& outlook, size_t columns) {
  const SearchSpace& space = *search.space();
  const std::string text = StageTable(space, outlook, columns) + "\n" + KeyTable(space, columns) +
                           "\n" + SizeText(search, outlook) + LeftOutLines(search);
  return text + "\n" + BestTable(search, outlook, columns);
}

// The same as JSON.
Json SpaceJson(const Search& search, const Outlook& outlook) {
  Json json{
      {"method", search.spec().method},
      {"profile", dsat::ToJson(*search.profile())},
      {"space", dsat::ToJson(*search.space())},
      {"where", search.spec().where},
      {"num_configs", std::accumulate(outlook.num_configs.begin(), outlook.num_configs.end(), 0.0)},
      {"num_candidates", outlook.num_candidates},
      {"left_out", Json::array()},
      {"best", Json::array()}};
  for (size_t i = 0; i < outlook.sizes.size(); ++i) {
    json["space"]["stages"][i]["micro_batch_sizes"] = outlook.sizes[i];
    json["space"]["stages"][i]["num_configs"] = outlook.num_configs[i];
  }
  for (const LeftOut& left_out : AllLeftOut(search))
    json["left_out"].push_back({{"what", left_out.what}, {"why", left_out.why}});
  for (const EstimatedConfig& config : outlook.best) {
    json["best"].push_back({{"assignment", config.assignment},
                            {"ds_config", config.ds_config},
                            {"peak_bytes", config.predicted.device.peak_bytes},
                            {"exact", config.predicted.exact},
                            {"step_ms", config.step_ms > 0 ? Json(config.step_ms) : Json()},
                            {"factor", config.factor}});
  }
  return json;
}

// The profile on a device that is not here.
ModelProfile ProfileFor(const std::string& device, ExperimentSpec& spec) {
  engine::Cluster cluster = ClusterFor(device);
  cluster.num_ranks = spec.slots_per_trial;
  if (spec.device_memory_bytes == 0) spec.device_memory_bytes = cluster.device_memory_bytes;
  cluster.device_memory_bytes = spec.device_memory_bytes;
  if (IsBuiltin(spec)) return ProfileByDataSheet(spec, cluster);
  if (cluster.device_memory_bytes == 0)  // A CPU has the memory of this host.
    cluster.device_memory_bytes = HostMemoryBytes() / spec.slots_per_trial;
  Log(LogLevel::kInfo, "running the script on fake tensors");
  Json config = engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial);
  HookReport report;
  spec.machine["gpu_speeds"] = SpeedsOfDryRun(cluster, config);
  const bool on_gpu = cluster.kind() != engine::DeviceKind::kCpu;
  report.profile = DryRun(DryProfileRequest(spec, std::move(config), on_gpu)).at("profile");
  ModelProfile profile = ProfileOf(report, cluster.device_memory_bytes, "the dry run");
  PutOn(cluster, profile);
  return profile;
}

// The experiment of a search with these options.
ExperimentSpec MakeSpec(const SpaceFlags& space, RunnerOptions* options) {
  SearchFlags search = space.search;
  DescribeCommand(&search);
  ExperimentSpec spec = ReadSpec(search.config, search.model_dir);
  spec.method = search.method;
  spec.options = search.options;
  spec.options.auto_method.warm_start = "off";
  SetTrainBatchSize(search.train_batch_size, spec);
  Warn(CheckStages(spec));
  if (space.profile == "measure") {
    spec.options.profile = space.profile;
  } else if (!space.device.empty() || !space.profile.empty()) {
    spec.profile = space.profile.empty()
                       ? ProfileFor(space.device, spec)
                       : ProfileFromJson(ReadJsonFile(space.profile), space.profile);
    if (IsBuiltin(spec)) Warn(CheckSpec(spec, /*elsewhere=*/true));
    return spec;
  }
  PlanSlurm(spec, options);
  const std::vector<LaunchHost>& hosts = options->machines.hosts;
  Warn(CheckSpec(spec, AreElsewhere(hosts)));
  CheckHosts(spec, hosts);
  spec.machine = MachineFacts(spec, hosts);
  return spec;
}

// Searches until the profile is known. Returns false if the user has stopped it.
bool Profile(RunnerOptions options, const std::string& out_dir, Experiment& experiment) {
  const bool must_be_shared = out_dir.empty() && !options.machines.hosts.empty();
  const std::string given = must_be_shared ? "dsat-out/space" : out_dir;
  std::optional<TemporaryFolder> logs;  // Removed if they were not needed.
  options.out_dir = given.empty() ? logs.emplace().path() : fs::absolute(given).string();
  ProgressDisplay display;
  Runner* running = nullptr;
  Runner runner(experiment, options, [&](const Experiment& e, const RunnerEvent& event) {
    const bool is_over = event.kind == RunnerEvent::Kind::kProfiled;
    is_over ? running->Cancel() : display.OnEvent(e, event);
  });
  running = &runner;
  // The signals must be blocked before Run starts threads.
  const InterruptHandler interrupt([&runner] { runner.Cancel(); }, OnHangup::kGoOn);
  const ExperimentState state = runner.Run();
  if (experiment.search().space()) return true;
  if (state == ExperimentState::kActive) return false;
  if (logs) logs->Keep();
  Throw(ErrorCode::kFailedPrecondition, "space: {}; its logs are in {}",
        experiment.search().FailureReason(), options.out_dir);
}

}  // namespace

int RunCommand(const Flags& flags, const SpaceFlags& space) {
  RunnerOptions options = MakeRunnerOptions(space.search.run);
  const ExperimentSpec spec = MakeSpec(space, &options);
  Store store = Store::InMemory();
  Experiment experiment = Experiment::Create(store, spec);
  if (!spec.profile && !Profile(options, space.search.run.out_dir, experiment))
    return kExitInterrupted;
  const dsat::Search& search = experiment.search();
  const Outlook outlook = LookAhead(search, kNumBest);
  if (flags.json) {
    Say(stdout, SpaceJson(search, outlook).dump(2) + "\n");
  } else {
    Say(stdout, DescribeProfile(experiment.search()) + "\n\n" +
                    SpaceText(search, outlook, TerminalColumns(STDOUT_FILENO)));
  }
  return 0;
}

}  // namespace dsat::cli
