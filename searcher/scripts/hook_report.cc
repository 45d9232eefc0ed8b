// Reads what a rank of a script tells dsat.
#include "searcher/scripts/hook_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/regex.h"
#include "engine/config/batch.h"
#include "searcher/command/command_words.h"
#include "searcher/command/import_hook.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/scripts/device_memory.h"

namespace dsat {
namespace {

constexpr int64_t kMinMeasuredActivationBytes = 1 << 20;
constexpr int kDryRunLimitS = 60;       // A launch that measures the profile takes about as long.
constexpr size_t kMaxLineBytes = 8192;  // A longer line of a log is skipped.
// Other numbers are no times of steps, and no FLOPs.
constexpr double kMinStepMs = 1e-6, kMaxStepMs = 1e12, kMaxFlops = 1e30;

// JSON from Python: NaN and infinities, which JSON lacks, become null.
Json ParsePythonJson(const std::string& text) {
  static const RE2 kStringOrWord(R"-((?s)"(?:[^"\\]|\\.)*"?|-?Infinity|NaN)-", RegexOptions());
  std::string strict;
  size_t copied = 0;
  for (re2::StringPiece found;
       kStringOrWord.Match(text, copied, text.size(), RE2::UNANCHORED, &found, 1);) {
    const auto begin = static_cast<size_t>(found.data() - text.data());
    strict.append(text, copied, begin - copied);
    strict += found[0] == '"' ? std::string(found) : "null";
    copied = begin + found.size();
  }
  strict.append(text, copied);
  return Json::parse(strict, nullptr, /*allow_exceptions=*/false);
}

// The number at a key of an object; nullopt if there is none or it is not finite.
std::optional<double> FiniteNumber(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const double value = *found;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// The number at a key without its fraction: 0 to 2^62, and 0 if there is none.
int64_t WholeNumberAt(const Json& object, const char* key) {
  const double number = FiniteNumber(object, key).value_or(0);
  return number > 0 ? static_cast<int64_t>(std::min(number, 0x1p62)) : 0;
}

std::vector<int64_t> WholeNumbersAt(const Json& object, const char* key) {
  std::vector<int64_t> numbers;
  for (const Json& number : object.value(key, Json::array())) {
    if (number.is_number_integer()) numbers.push_back(number);
  }
  return numbers;
}

RanConfig ReadRan(const Json& ran) {
  RanConfig config;
  if (!ran.is_object()) return config;
  for (const auto& [name, pointer] : kRanSettings) {
    if (const auto value = FiniteNumber(ran, name)) config.settings[pointer] = *value;
  }
  config.data_parallel_size = WholeNumberAt(ran, "data_parallel_size");
  return config;
}

// Reads the times of the steps, or says what is wrong with them.
void ReadSteps(const Json& file, HookReport* report) {
  const auto ms = [](const Json& seconds) {
    return seconds.is_number() ? 1e3 * seconds.get<double>() : -1.0;
  };
  const Json seconds = file.value("step_seconds", Json());
  if (seconds.is_null()) return;
  for (const Json& step : seconds)
    report->steps.push_back({.latency_ms = ms(step)});
  const auto is_possible = [](const MeasuredStep& step) {
    return step.latency_ms >= kMinStepMs && step.latency_ms <= kMaxStepMs;
  };
  if (!seconds.is_array() || seconds.empty() || !std::ranges::all_of(report->steps, is_possible)) {
    constexpr size_t kMostQuoted = 100;
    report->steps.clear();
    report->problem = fmt::format("step_seconds is {}; expected a list of numbers > 0",
                                  seconds.dump().substr(0, kMostQuoted));
    return;
  }
  constexpr std::pair<const char*, double MeasuredStep::*> kParts[] = {
      {"forward_seconds", &MeasuredStep::forward_ms},
      {"backward_seconds", &MeasuredStep::backward_ms},
      {"update_seconds", &MeasuredStep::update_ms}};
  for (const auto& [key, part] : kParts) {
    const Json times = file.value(key, Json());
    if (!times.is_array()) continue;
    for (size_t i = 0; i < std::min(times.size(), report->steps.size()); ++i)
      report->steps[i].*part = std::clamp(ms(times[i]), 0.0, kMaxStepMs);
  }
}

// The highest value of all ranks that have one.
void AddHighest(const char* name, const std::vector<HookReport>& reports,
                std::optional<double> HookReport::*value, Measurement* measurement) {
  for (const HookReport& report : reports) {
    if (!(report.*value)) continue;
    const Metric metric{.value = *(report.*value), .spread = 0, .samples = 1};
    double& highest = measurement->try_emplace(name, metric).first->second.value;
    highest = std::max(highest, metric.value);
  }
}

// Says how the script can feed the trial's batches: by the flag of the command that has the number
// of samples, if there is one.
std::string WayOutOf(int64_t fed, const ExperimentSpec& spec) {
  const CommandWords command(spec.entrypoint);
  for (size_t i = 0; i < command.words().size(); ++i) {
    const std::string& word = command.words()[i].text;
    const std::string flag = word.substr(0, word.find('='));
    const auto value = ValueOfFlag(command, i, WithUnderscores(flag));
    const bool evaluates = flag.find("eval") != flag.npos || flag.find("val_") != flag.npos;
    if (!flag.starts_with("--") || flag.find("batch") == flag.npos || evaluates || !value ||
        TextOf(command, *value) != std::to_string(fed))
      continue;
    return fmt::format(
        "write {0} $(jq .train_micro_batch_size_per_gpu $DSAT_DS_CONFIG) in the entrypoint in "
        "place of {0} {1}",
        flag, fed);
  }
  return "build its data loader with dsat.get_ds_config(config)"
         "[\"train_micro_batch_size_per_gpu\"]";
}

}  // namespace

std::optional<HookReport> ReadHookReport(const std::string& text) {
  const Json file = ParsePythonJson(text);
  if (!file.is_object()) return std::nullopt;
  HookReport report;
  report.config_applied = file.value("config_applied", Json()) == true;
  const Json engine = file.value("engine", Json());
  if (engine.is_string()) report.engine = engine;
  report.on_cpu = file.value("on_cpu", Json()) == true;
  report.changed_script = file.value("changed_script", Json()) == true;
  report.world_size = WholeNumberAt(file, "world_size");
  report.ran = ReadRan(file.value("ran", Json()));
  report.num_steps = WholeNumberAt(file, "num_steps");
  report.samples = FiniteNumber(file, "samples").value_or(0);
  report.flops = std::clamp(FiniteNumber(file, "flops").value_or(0), 0.0, kMaxFlops);
  report.first_counted_step = WholeNumberAt(file, "first_counted_step");
  ReadSteps(file, &report);
  report.profile = file.value("profile", Json());
  const Json error = file.value("error", Json());
  if (error.is_string()) report.error = error;
  report.recurs = file.value("recurs", Json()) == true;
  report.peak_bytes = FiniteNumber(file, "peak_bytes");
  report.host_bytes = FiniteNumber(file, "host_bytes");
  report.alloc_retries = FiniteNumber(file, "num_alloc_retries");
  report.data_wait = FiniteNumber(file, "data_wait_share");
  report.has_ended = file.contains("losses");
  for (const Json& loss : file.value("losses", Json::array())) {
    report.losses.push_back(loss.is_number() ? loss.get<double>()
                                             : std::numeric_limits<double>::quiet_NaN());
  }
  for (const int64_t size : WholeNumbersAt(file, "forward_batch_sizes"))
    report.largest_batch = std::max(report.largest_batch, size);
  report.partial_steps = WholeNumbersAt(file, "partial_steps");
  return report;
}

Measurement MeasurementOf(const std::vector<HookReport>& reports, int64_t train_batch_size) {
  const HookReport& first = reports[0];
  std::set<int64_t> partial;
  for (const HookReport& report : reports)
    partial.insert(report.partial_steps.begin(), report.partial_steps.end());
  std::vector<MeasuredStep> steps;
  for (size_t i = 0; i < first.steps.size(); ++i) {
    if (!partial.contains(first.first_counted_step + static_cast<int64_t>(i)))
      steps.push_back(first.steps[i]);
  }
  if (steps.empty()) steps = first.steps;  // Each step has a smaller batch.
  const auto summarize = [&](const auto& get) {
    std::vector<double> values;
    for (const MeasuredStep& step : steps)
      values.push_back(get(step));
    return Summarize(std::move(values));
  };
  const double samples_ms = static_cast<double>(train_batch_size) * 1e3;
  double flops = 0, num_counted = 0;  // Experts have different shares of the samples.
  for (const HookReport& report : reports) {
    flops += report.flops;
    num_counted += report.flops > 0;
  }
  flops /= std::max(num_counted, 1.0);
  Measurement result;
  result["latency"] = summarize([](const MeasuredStep& s) { return s.latency_ms; });
  result["throughput"] =
      summarize([&](const MeasuredStep& s) { return samples_ms / s.latency_ms; });
  result["forward"] = summarize([](const MeasuredStep& s) { return s.forward_ms; });
  result["backward"] = summarize([](const MeasuredStep& s) { return s.backward_ms; });
  result["step"] = summarize([](const MeasuredStep& s) { return s.update_ms; });
  result["FLOPS_per_gpu"] =
      summarize([&](const MeasuredStep& s) { return flops * 1e3 / s.latency_ms; });
  // 0 stands for what was not measured.
  std::erase_if(result, [](const auto& entry) { return entry.second.value <= 0; });
  AddHighest("peak_bytes", reports, &HookReport::peak_bytes, &result);
  AddHighest("host_bytes", reports, &HookReport::host_bytes, &result);
  AddHighest("alloc_retries", reports, &HookReport::alloc_retries, &result);
  AddHighest("data_wait", reports, &HookReport::data_wait, &result);
  return result;
}

ModelProfile ProfileOf(const HookReport& report, int64_t device_memory_bytes,
                       const std::string& what) {
  Json json = report.profile;
  if (json.is_object() && device_memory_bytes > 0)
    json["device_memory_bytes"] = device_memory_bytes;
  ModelProfile profile = ProfileFromJson(json, what);
  int64_t& activations = profile.activation_bytes_per_sample;
  if (profile.dry_places.empty()) activations = std::max(activations, kMinMeasuredActivationBytes);
  if (report.on_cpu) profile.device = "cpu";
  return profile;
}

Json DryProfileRequest(const ExperimentSpec& spec, Json ds_config, bool on_gpu) {
  const engine::BatchSizes submitted =
      engine::ResolveBatchSizes(engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial),
                                spec.ds_config_path, spec.slots_per_trial);
  // Gradients accumulate in the second micro-batch as in all that follow.
  SetPoint(ds_config,
           {submitted.micro_batch_size, std::min<int64_t>(submitted.accumulation_steps, 2)});
  Json request = DryRunRequest(spec, ds_config);
  request["stages"] = spec.options.zero_stages;
  request["on_gpu"] = on_gpu;
  if (on_gpu && spec.machine.contains("gpu_speeds")) request["speeds"] = spec.machine["gpu_speeds"];
  return request;
}

std::string ProfileByDryRun(const ExperimentSpec& spec, const Json& ds_config,
                            const std::string& report) {
  try {
    const std::optional<int64_t> gpu_bytes = NvidiaMemoryBytes();
    Json request = DryProfileRequest(spec, ds_config, gpu_bytes.has_value());
    if (spec.device_memory_bytes == 0) request["memory"] = gpu_bytes.value_or(0);
    request["report"] = report;
    request["limit_s"] = kDryRunLimitS;
    return DryRunCommand(std::move(request));
  } catch (const Error&) {
    return "";
  }
}

bool AreReportsMissing(const std::vector<HookReport>& reports) {
  return std::ranges::any_of(reports, &HookReport::config_applied) &&
         !std::ranges::all_of(reports, &HookReport::has_ended);
}

std::vector<double> MeanLosses(const std::vector<HookReport>& reports) {
  std::vector<double> means;
  const auto is_running = [](const HookReport& report) {
    return report.config_applied && !report.has_ended;
  };
  if (std::ranges::any_of(reports, is_running)) return means;
  double num_ranks = 0;
  for (const HookReport& report : reports) {
    if (report.losses.empty()) continue;
    if (num_ranks++ == 0) means = report.losses;
    means.resize(std::min(means.size(), report.losses.size()));
    for (size_t i = 0; i < means.size(); ++i)
      means[i] += (report.losses[i] - means[i]) / num_ranks;
  }
  return means;
}

std::vector<double> LossesInLog(const std::string& path, const std::string& pattern) {
  const RE2 regex(pattern, RegexOptions());
  std::ifstream log(path);
  std::vector<double> losses;
  std::string line(kMaxLineBytes + 1, '\0');
  while (log.getline(line.data(), static_cast<std::streamsize>(line.size())) || log.gcount() > 0) {
    if (log.fail()) {  // The line is longer, such as that of a progress bar.
      log.clear();
      log.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
      continue;
    }
    const auto size = static_cast<size_t>(log.gcount()) - (log.eof() ? 0 : 1);
    std::string text;
    if (!RE2::PartialMatch(Piece({line.data(), size}), regex, &text)) continue;
    double loss = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), loss);
    losses.push_back(read.ec == std::errc() ? loss : std::numeric_limits<double>::quiet_NaN());
  }
  return losses;
}

std::string MisfitOfRanks(const HookReport& report, const ExperimentSpec& spec) {
  if (report.world_size > 0 && report.world_size != spec.slots_per_trial) {
    const std::optional<RankLauncher> launcher = FindRankLauncher(CommandWords(spec.entrypoint));
    return fmt::format(
        "the entrypoint trained with world size {}; expected {} as in resources.slots_per_trial: "
        "{}, or change slots_per_trial",
        report.world_size, spec.slots_per_trial,
        launcher ? fmt::format("give {} {} to {}", launcher->ranks_flag, spec.slots_per_trial,
                               launcher->name)
        : StartsRanks(spec) ? "let it start $NPROC_PER_NODE ranks on each host; `deepspeed` on "
                              "several hosts has to be the entrypoint itself"
                            : "begin it with the launcher that starts them");
  }
  const int64_t replicas = report.ran.data_parallel_size;
  const int64_t expected =
      engine::DataParallelSize(spec.ds_config, spec.ds_config_path, spec.slots_per_trial);
  if (!spec.options.train_batch_size || replicas == 0 || replicas == expected) return "";
  // A kept batch is as many samples per replica as submitted, however many replicas there are.
  if (*spec.options.train_batch_size ==
      engine::ResolveBatchSizes(spec.ds_config, spec.ds_config_path, spec.slots_per_trial)
          .train_batch_size)
    return "";
  // Ranks of another engine share samples in a way that the ds_config does not say.
  const std::string stages =
      report.engine != "PipelineEngine"
          ? ""
          : fmt::format(
                "give the number of pipeline stages in the ds_config (\"pipeline\": "
                "{{\"stages\": {}}}), or ",
                spec.slots_per_trial / replicas);
  return fmt::format(
      "the data-parallel size of the script is {} on {} ranks; expected {}, by which the fixed "
      "train_batch_size {} is divided: {}use --train-batch-size any",
      replicas, spec.slots_per_trial, expected, *spec.options.train_batch_size, stages);
}

std::string MisfitOfBatches(const HookReport& report, int64_t micro_batch,
                            const std::map<int64_t, int64_t>& others, const ExperimentSpec& spec) {
  const int64_t fed = report.largest_batch;
  if (fed == 0) return "";
  if (fed < micro_batch) {
    return fmt::format(
        "the script fed batches of at most {} samples, and the config says {}: its data loader has "
        "its own batch size, or too little data; {}",
        fed, micro_batch, WayOutOf(fed, spec));
  }
  // More samples than the micro-batch may be views of them, which grow with it. Fewer than another
  // size asked for are all that there are.
  for (const auto& [size, other_fed] : others) {
    if (size == micro_batch || other_fed != fed || fed < size) continue;
    return fmt::format(
        "the script feeds batches of {} samples, with train_micro_batch_size_per_gpu {} as with "
        "{}: {}",
        fed, micro_batch, size, WayOutOf(fed, spec));
  }
  return "";
}

std::string Rewritten(const RanConfig& ran, const Json& asked) {
  std::string text;
  for (const auto& [name, pointer] : kRanSettings) {
    const auto found = ran.settings.find(pointer);
    const Json* value = FindAtPointer(asked, pointer);
    if (found == ran.settings.end() || value == nullptr || !value->is_number()) continue;
    if (found->second == value->get<double>()) continue;
    text += fmt::format("{}{} is {} instead of {}", text.empty() ? "" : ", ", pointer + 1,
                        found->second, value->dump());
  }
  return text;
}

}  // namespace dsat
