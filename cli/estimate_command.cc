// dsat estimate: predicts memory, traffic and time of a configuration on a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/num_cores.h"
#include "cli/commands.h"
#include "cli/estimate_output.h"
#include "cli/estimate_script.h"
#include "cli/read_spec.h"
#include "engine/config/strategies.h"
#include "profiler/planner.h"

namespace dsat::cli {
namespace {

using engine::Cluster;

constexpr const char* kDefaultGpu = "a100";

// The subject of an estimate, from the experiment file and the flags over it.
struct Subject {
  PlannerInputs inputs;
  Json ds_config;
  std::string name;
  Cluster cluster;
};

Json ModelOf(const EstimateFlags& flags) {
  if (flags.params) return GptOfSize(*flags.params);
  if (flags.model.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "no model; expected an experiment file of entrypoint builtin, --model or --params");
  }
  if (flags.model.front() == '{') return ParseTolerantJson(flags.model, "--model");
  return {{"type", "gpt2"}, {"preset", flags.model}};
}

void UseExperiment(const EstimateFlags& flags, Subject& subject) {
  std::vector<std::string> warnings;
  const ExperimentSpec spec = ReadSpec(flags.config, flags.model_dir, &warnings);
  if (flags.device.empty() && spec.device == "cuda")
    subject.cluster = engine::ClusterOf(kDefaultGpu);
  subject.inputs.base_dir = spec.model_dir;
  if (const auto model = spec.hyperparameters.find("model"); model != spec.hyperparameters.end()) {
    subject.inputs.model = *model;
    subject.inputs.model_what = spec.config_path + ": /hyperparameters/model";
  }
  if (const auto data = spec.hyperparameters.find("data"); data != spec.hyperparameters.end())
    subject.inputs.data = *data;
  subject.ds_config = spec.ds_config;
  subject.name = spec.ds_config_path.empty() ? spec.config_path : spec.ds_config_path;
  subject.cluster.num_ranks = spec.slots_per_trial;
  // A trial runs on one machine.
  subject.cluster.ranks_per_node = std::max(subject.cluster.ranks_per_node, spec.slots_per_trial);
  subject.cluster.rank_host_memory_bytes = spec.host_memory_bytes;
  // As the trials share this machine.
  if (flags.device.empty() && spec.device != "cuda")
    subject.cluster.num_threads =
        static_cast<int>(std::max<int64_t>(1, NumCores() / spec.slots_per_trial));
  if (spec.device_memory_bytes > 0) subject.cluster.device_memory_bytes = spec.device_memory_bytes;
}

void SetSize(const std::string& text, const char* flag, int64_t& bytes) {
  if (text.empty()) return;
  bytes = ParseBytes(text, flag);
  if (bytes == 0) Throw(ErrorCode::kInvalidArgument, "{}: 0; expected more", flag);
}

// "300GB" and "300GB/s" are the same.
void SetSpeed(std::string_view text, const char* flag, double& bytes_per_s) {
  if (text.empty()) return;
  if (text.ends_with("/s")) text.remove_suffix(2);
  int64_t bytes = 0;
  SetSize(std::string(text), flag, bytes);
  bytes_per_s = static_cast<double>(bytes);
}

void ApplyFlags(const EstimateFlags& flags, Cluster& cluster) {
  if (flags.ranks_per_node) cluster.ranks_per_node = *flags.ranks_per_node;
  if (flags.ranks) cluster.num_ranks = *flags.ranks;
  if (flags.nodes) cluster.num_ranks = *flags.nodes * cluster.ranks_per_node;
  constexpr int64_t kMostRanks = 1'000'000;
  if (cluster.num_ranks > kMostRanks) {
    Throw(ErrorCode::kInvalidArgument, "{}: {} ranks in all; expected at most {}",
          flags.nodes ? "--nodes" : "--ranks", cluster.num_ranks, kMostRanks);
  }
  SetSize(flags.device_memory, "--device-memory", cluster.device_memory_bytes);
  SetSize(flags.host_memory, "--host-memory", cluster.host_memory_bytes);
  if (!flags.host_memory.empty()) cluster.rank_host_memory_bytes = 0;
  SetSize(flags.disk_space, "--disk-space", cluster.disk_bytes);
  constexpr double kFewestFlops = 1e6;
  if (flags.flops && *flags.flops < kFewestFlops) {
    Throw(ErrorCode::kInvalidArgument, "--flops: {}; expected {} or more", *flags.flops,
          kFewestFlops);
  }
  if (flags.flops) cluster.flops_16bit = cluster.flops_f32 = *flags.flops;
  if (flags.efficiency) cluster.efficiency = *flags.efficiency;
  SetSpeed(flags.link, "--link", cluster.link_bytes);
  SetSpeed(flags.network, "--network", cluster.network_bytes);
  SetSpeed(flags.pcie, "--pcie", cluster.copy_bytes);
  SetSpeed(flags.disk, "--disk", cluster.disk_read_bytes);
  SetSpeed(flags.disk, "--disk", cluster.disk_write_bytes);
}

// With another number of ranks than `own_ranks` or another micro-batch size the accumulation
// follows or, where that cannot be, the total.
void ApplySettings(const EstimateFlags& flags, int64_t own_ranks, Subject& subject) {
  Json& ds_config = subject.ds_config;
  for (const std::string& setting : flags.settings)
    ApplySetting(setting, ds_config);
  constexpr const char* kMicroBatch = "train_micro_batch_size_per_gpu";
  const bool other_ranks = own_ranks != subject.cluster.num_ranks;
  if (other_ranks && own_ranks > 0 && !ds_config.contains(kMicroBatch)) {
    ds_config[kMicroBatch] =
        engine::ResolveBatchSizes(ds_config, subject.name, own_ranks).micro_batch_size;
  }
  if (flags.micro_batch) ds_config[kMicroBatch] = *flags.micro_batch;
  if (!flags.micro_batch && !flags.ranks && !flags.nodes) return;
  const bool is_set = std::ranges::any_of(flags.settings, [](const std::string& setting) {
    return setting.starts_with("/train_batch_size=");
  });
  try {
    engine::ResolveBatchSizes(ds_config, subject.name, subject.cluster.num_ranks);
  } catch (const Error&) {
    if (is_set || !ds_config.contains(kMicroBatch)) throw;
    ds_config.erase("train_batch_size");
  }
}

Subject SubjectOf(const EstimateFlags& flags) {
  Subject subject;
  const std::string fallback = flags.config.empty() ? kDefaultGpu : "cpu";
  subject.cluster = engine::ClusterOf(flags.device.empty() ? fallback : flags.device);
  if (!flags.config.empty()) UseExperiment(flags, subject);
  if (flags.params || !flags.model.empty() || subject.inputs.model.is_null()) {
    subject.inputs.model = ModelOf(flags);
    subject.inputs.model_what = "--model";
    subject.inputs.base_dir.clear();
    subject.inputs.data = nullptr;
  }
  if (!flags.ds_config.empty() || flags.config.empty()) {
    subject.name = flags.ds_config.empty() ? "stage_2" : flags.ds_config;
    subject.ds_config = engine::ReadDsConfig(subject.name);
  }
  subject.inputs.seq_len = flags.seq_len;
  subject.inputs.ds_config_source = subject.name;
  const int64_t own_ranks = flags.config.empty() ? 0 : subject.cluster.num_ranks;
  ApplyFlags(flags, subject.cluster);
  ApplySettings(flags, own_ranks, subject);
  return subject;
}

void PrintJson(const Planner& planner, const PlannerEstimate& estimate,
               const std::vector<Change>& changes, const std::vector<Variant>& variants) {
  Json json{
      {"model", planner.model().description},   {"parameters", engine::NumParams(planner.model())},
      {"seq_len", planner.seq_len()},           {"ranks_in_all", planner.cluster().num_ranks},
      {"nodes", planner.cluster().num_nodes()}, {"device_name", planner.cluster().device},
      {"estimate", ToJson(estimate)},           {"changes_that_fit", Json::array()}};
  for (const Change& change : changes)
    json["changes_that_fit"].push_back(
        {{"what", change.what}, {"estimate", ToJson(change.estimate)}});
  if (!variants.empty()) json["variants"] = ToJson(planner, variants);
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

int RunCommand(const Flags& flags, const EstimateFlags& estimate_flags) {
  if (const auto script = ScriptOf(estimate_flags)) return EstimateScript(flags, *script);
  const Subject subject = SubjectOf(estimate_flags);
  const Planner planner = MakePlanner(subject.inputs, subject.cluster);
  std::vector<std::string> warnings;
  const PlannerEstimate estimate = planner.Of(subject.ds_config, &warnings);
  for (const std::string& warning : warnings)
    Log(LogLevel::kWarn, warning);
  std::vector<Change> changes;
  if (!estimate.fits()) changes = planner.NearestChanges(subject.ds_config);
  std::vector<Variant> variants;
  if (estimate_flags.all_stages) variants = planner.Variants(subject.ds_config);
  if (flags.json) {
    PrintJson(planner, estimate, changes, variants);
    return 0;
  }
  fmt::print("{}", HeadText(planner));
  if (!variants.empty()) {
    fmt::print("{}", VariantsText(planner, variants));
    return 0;
  }
  fmt::print("{}", EstimateText(planner, subject.name, estimate));
  if (!estimate.fits()) fmt::print("{}", ChangesText(changes));
  return 0;
}

}  // namespace dsat::cli
