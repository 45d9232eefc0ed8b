// Profiles from the data sheets of engine/runtime/cluster.h.
#include "profiler/data_sheet.h"

#include <algorithm>
#include <cctype>

#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "engine/model/models.h"
#include "profiler/planner.h"

namespace dsat {
namespace {

bool IsHalf(const Json& ds_config) {
  const engine::Settings settings(ds_config, "ds_config");
  return settings.Is("/fp16/enabled") || settings.Is("/bf16/enabled");
}

}  // namespace

engine::Cluster ClusterOfGpu(const std::string& gpu) {
  std::string name = gpu;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string& known : engine::ClusterNames()) {
    if (known != "cpu" && name.find(known) != name.npos) return engine::ClusterOf(known);
  }
  return engine::ClusterOf("a100");
}

Json SpeedsOfDryRun(const engine::Cluster& cluster, const Json& ds_config) {
  const engine::Speeds speeds =
      cluster.SpeedsFor(IsHalf(ds_config) ? engine::DType::kBF16 : engine::DType::kF32);
  return {speeds.flops, speeds.device_bytes};
}

void PutOn(const engine::Cluster& cluster, ModelProfile& profile) {
  const engine::Speeds speeds = cluster.SpeedsFor(engine::DType::kF32);
  profile.device = cluster.kind() == engine::DeviceKind::kCpu ? "cpu" : "cuda";
  profile.device_memory_bytes = cluster.device_memory_bytes;
  profile.link_bytes_per_s = static_cast<int64_t>(speeds.link_bytes);
  profile.to_device_bytes_per_s = profile.to_host_bytes_per_s =
      static_cast<int64_t>(speeds.copy_bytes);
  // Copies read and write.
  profile.copy_bytes_per_s = static_cast<int64_t>(speeds.device_bytes / 2);
}

ModelProfile ProfileByDataSheet(const ExperimentSpec& spec, const engine::Cluster& cluster) {
  const Planner planner = MakePlanner(PlannerInputsOf(spec), cluster);
  const PlannerEstimate estimate =
      planner.Of(engine::ConfigForTrial(spec.ds_config, {{kMicroBatchKey, 1}}, cluster.num_ranks));
  const double samples = static_cast<double>(estimate.batch.accumulation_steps);
  ModelProfile profile;
  profile.num_params = profile.trainable_num_params = engine::NumParams(planner.model());
  for (const engine::Prediction& rank : estimate.ranks) {
    profile.activation_bytes_per_sample =
        std::max(profile.activation_bytes_per_sample, rank.activation_bytes_per_sample);
    profile.forward_flops_per_sample +=
        static_cast<int64_t>(static_cast<double>(rank.forward_flops) / samples);
  }
  PutOn(cluster, profile);
  profile.num_threads = cluster.num_threads;
  profile.matmul_flops_per_s =
      static_cast<int64_t>(IsHalf(spec.ds_config) ? cluster.flops_16bit : cluster.flops_f32);
  return profile;
}

}  // namespace dsat
