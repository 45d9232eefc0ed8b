// Finds out what the engine of a script ran with, and compares it with what it was asked to run.
#include "searcher/scripts/ran_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/config/batch.h"
#include "proto/trial.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/scripts/deepspeed_metrics.h"

namespace dsat {
namespace {

// The compared keys by the names that the hook and DeepSpeed's dump give them.
constexpr std::pair<const char*, const char*> kCompared[] = {
    {"train_micro_batch_size_per_gpu", kMicroBatchKey},
    {"gradient_accumulation_steps", kAccumulationKey},
    {"zero_stage", kStageKey},
    {"reduce_bucket_size", "/zero_optimization/reduce_bucket_size"},
    {"allgather_bucket_size", "/zero_optimization/allgather_bucket_size"},
};

// JSON from Python: NaN and infinities, which JSON lacks, become null.
Json ParsePythonJson(const std::string& text) {
  std::string strict;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\' && i + 1 < text.size()) strict += text[i++];
    if (text[i] == '"' && c != '\\') quoted = !quoted;
    const std::string_view rest = std::string_view(text).substr(i);
    std::string_view word;
    for (const std::string_view name : {"NaN", "-Infinity", "Infinity"}) {
      if (!quoted && word.empty() && rest.starts_with(name)) word = name;
    }
    strict += word.empty() ? std::string(1, text[i]) : "null";
    if (!word.empty()) i += word.size() - 1;
  }
  return Json::parse(strict, nullptr, /*allow_exceptions=*/false);
}

// The number at the beginning of `text`.
std::optional<double> LeadingNumber(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? std::optional(value) : std::nullopt;
}

// The value of "  name ..... value" in a dump.
std::optional<std::string_view> DumpedValue(std::string_view log, std::string_view name) {
  const std::string wanted = fmt::format("]   {} ", name);
  const size_t at = log.find(wanted);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = log.substr(at + wanted.size());
  rest = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(rest.find_first_not_of(" ."), rest.size()));
  return rest;
}

std::optional<double> Dumped(std::string_view log, std::string_view name) {
  const auto value = DumpedValue(log, name);
  return value ? LeadingNumber(*value) : std::nullopt;
}

// "name=value" in the dump of a section.
std::optional<double> SectionValue(std::string_view section, std::string_view name) {
  const std::string wanted = fmt::format(" {}=", name);
  const size_t at = section.find(wanted);
  return at == std::string_view::npos ? std::nullopt
                                      : LeadingNumber(section.substr(at + wanted.size()));
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
  report.world_size = WholePart(FiniteNumber(file, "world_size").value_or(0));
  const Json ran = file.value("ran", Json::object());
  for (const auto& [name, pointer] : kCompared) {
    if (!ran.is_object()) break;
    if (const auto value = FiniteNumber(ran, name)) report.ran.settings[pointer] = *value;
  }
  if (ran.is_object())
    report.ran.data_parallel_size = WholePart(FiniteNumber(ran, "data_parallel_size").value_or(0));
  report.peak_bytes = FiniteNumber(file, "peak_bytes");
  report.host_bytes = FiniteNumber(file, "host_bytes");
  report.alloc_retries = FiniteNumber(file, "num_alloc_retries");
  report.data_wait = FiniteNumber(file, "data_wait_share");
  report.has_ended = file.contains("losses");
  for (const Json& loss : file.value("losses", Json::array())) {
    report.losses.push_back(loss.is_number() ? loss.get<double>()
                                             : std::numeric_limits<double>::quiet_NaN());
  }
  for (const Json& size : file.value("forward_batch_sizes", Json::array())) {
    if (size.is_number_integer())
      report.largest_batch = std::max<int64_t>(report.largest_batch, size);
  }
  for (const Json& step : file.value("partial_steps", Json::array())) {
    if (step.is_number_integer()) report.partial_steps.push_back(step);
  }
  report.counted.first = WholePart(FiniteNumber(file, "first_counted_step").value_or(0));
  for (const Json& seconds : file.value("step_seconds", Json::array())) {
    if (seconds.is_number() && seconds > 0)
      report.counted.latencies_ms.push_back(1e3 * seconds.get<double>());
  }
  return report;
}

std::optional<RanConfig> ReadConfigDump(std::string_view log) {
  RanConfig ran;
  for (const auto& [name, pointer] : kCompared) {
    if (const auto value = Dumped(log, name)) ran.settings[pointer] = *value;
  }
  if (ran.settings.empty()) return std::nullopt;
  if (const auto zero = DumpedValue(log, "zero_config")) {
    for (const char* name : {"reduce_bucket_size", "allgather_bucket_size"}) {
      if (const auto value = SectionValue(*zero, name))
        ran.settings[fmt::format("/zero_optimization/{}", name)] = *value;
    }
  }
  if (const auto stage = Dumped(log, "zero_optimization_stage")) ran.settings[kStageKey] = *stage;
  ran.data_parallel_size = WholePart(Dumped(log, "world_size").value_or(0));
  return ran;
}

std::string MisfitOfRanks(const HookReport& report, const ExperimentSpec& spec) {
  if (report.world_size > 0 && report.world_size != spec.slots_per_trial) {
    const std::optional<RankLauncher> launcher = FindRankLauncher(spec.entrypoint);
    return fmt::format(
        "the entrypoint trained with world size {}; expected {} as in resources.slots_per_trial: "
        "{}, or change slots_per_trial",
        report.world_size, spec.slots_per_trial,
        launcher ? fmt::format("give {} {} to {}", launcher->ranks_flag, spec.slots_per_trial,
                               launcher->name)
                 : "begin it with the launcher that starts them");
  }
  const int64_t replicas = report.ran.data_parallel_size;
  const int64_t expected =
      engine::DataParallelSize(spec.ds_config, spec.ds_config_path, spec.slots_per_trial);
  if (!spec.options.train_batch_size || replicas == 0 || replicas == expected) return "";
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
                            const std::map<int64_t, int64_t>& others) {
  const int64_t fed = report.largest_batch;
  if (fed == 0) return "";
  if (fed < micro_batch) {
    return fmt::format(
        "the script fed batches of at most {} samples, and the config says {}: its data loader has "
        "its own batch size, or too little data",
        fed, micro_batch);
  }
  // More samples than the micro-batch may be views of them, which grow with it. Fewer than another
  // size asked for are all that there are.
  for (const auto& [size, other_fed] : others) {
    if (size == micro_batch || other_fed != fed || fed < size) continue;
    return fmt::format(
        "the script feeds batches of {} samples, with train_micro_batch_size_per_gpu {} as with "
        "{}: build its data loader with dsat.get_ds_config(config)"
        "[\"train_micro_batch_size_per_gpu\"]",
        fed, micro_batch, size);
  }
  return "";
}

std::string Rewritten(const RanConfig& ran, const Json& asked) {
  std::string text;
  for (const auto& [name, pointer] : kCompared) {
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
