// Whole ds_configs by name.
#include "engine/config/strategies.h"

#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <ranges>
#include <system_error>

#include "base/error.h"
#include "engine/config/validate.h"

namespace dsat::engine {
namespace {

constexpr std::array<Strategy, 8> kStrategies = {{{"stage_0", 0, "none", "none"},
                                                  {"stage_1", 1, "none", "none"},
                                                  {"stage_2", 2, "none", "none"},
                                                  {"stage_2_offload", 2, "cpu", "none"},
                                                  {"stage_3", 3, "none", "none"},
                                                  {"stage_3_offload_optimizer", 3, "cpu", "none"},
                                                  {"stage_3_offload", 3, "cpu", "cpu"},
                                                  {"stage_3_nvme", 3, "nvme", "nvme"}}};
constexpr std::string_view kPrefix = "deepspeed_";
constexpr char kNvmePath[] = "/local_nvme";
constexpr int64_t kBucketElems = 200'000'000;

void SetOffload(Json& zero, const std::string& key, const std::string& device) {
  if (device == "none") {
    zero.erase(key);
    return;
  }
  Json& offload = zero[key];
  if (!offload.is_object()) offload = Json::object();
  offload["device"] = device;
  if (device == "nvme" && !offload.contains("nvme_path")) offload["nvme_path"] = kNvmePath;
}

}  // namespace

std::span<const Strategy> Strategies() {
  return kStrategies;
}

const Strategy* FindStrategy(std::string_view name) {
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (const Strategy& strategy : kStrategies) {
    if (name == strategy.name) return &strategy;
  }
  return nullptr;
}

Json WithStrategy(const Json& ds_config, const Strategy& strategy) {
  Json config = ds_config;
  Json& zero = config["zero_optimization"];
  if (!zero.is_object()) zero = Json::object();
  zero["stage"] = strategy.stage;
  SetOffload(zero, "offload_optimizer", strategy.optimizer_device);
  SetOffload(zero, "offload_param", strategy.param_device);
  return config;
}

Json ReadDsConfig(const std::string& name_or_path) {
  if (const Strategy* strategy = FindStrategy(name_or_path)) {
    return WithStrategy({{"train_micro_batch_size_per_gpu", "auto"},
                         {"bf16", {{"enabled", true}}},
                         {"optimizer", {{"type", "AdamW"}}},
                         {"zero_optimization",
                          {{"overlap_comm", true},
                           {"contiguous_gradients", true},
                           {"reduce_bucket_size", kBucketElems},
                           {"allgather_bucket_size", kBucketElems}}}},
                        *strategy);
  }
  std::error_code error;  // A name may be too long for the file system.
  if (!std::filesystem::exists(name_or_path, error)) {
    Throw(ErrorCode::kNotFound,
          "{}: no such file, and no strategy; expected a ds_config file or {}", name_or_path,
          fmt::join(std::views::transform(kStrategies, &Strategy::name), ", "));
  }
  Json config = ReadJsonFile(name_or_path);
  CheckIsObject(config, name_or_path);
  return config;
}

}  // namespace dsat::engine
