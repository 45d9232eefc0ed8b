// The formulas of docs/methods.md; what is sharded comes from the placement table.
#include "profiler/memory_model.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "base/error.h"
#include "engine/config/ds_config.h"

namespace dsat {
namespace {

bool IsTrue(const Json& config, const std::string& pointer) {
  const Json* value = FindAtPointer(config, pointer);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

// A count in elements, however it is written (5e8 is a number like any other).
int64_t Elems(const Json& config, const std::string& key, int64_t otherwise) {
  const Json* value = FindAtPointer(config, "/zero_optimization/" + key);
  if (value == nullptr || !value->is_number()) return otherwise;
  constexpr double kMost = 1e18;
  return static_cast<int64_t>(std::clamp(value->get<double>(), 0.0, kMost));
}

// Values that the optimizer keeps for each parameter, master weights aside.
int64_t OptimizerMoments(const Json& config) {
  constexpr int64_t kAdam = 2;
  const Json* type = FindAtPointer(config, "/optimizer/type");
  if (type == nullptr || !type->is_string()) return kAdam;
  std::string name = type->get<std::string>();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (name == "lion" || name == "adagrad") return 1;
  if (name != "sgd") return kAdam;
  const Json* momentum = FindAtPointer(config, "/optimizer/params/momentum");
  return momentum != nullptr && momentum->is_number() && momentum->get<double>() != 0 ? 1 : 0;
}

int64_t Share(int64_t bytes, engine::Placement placement, int64_t world_size) {
  if (placement != engine::Placement::kShard) return bytes;
  return (bytes + world_size - 1) / world_size;
}

}  // namespace

MemoryModel::MemoryModel(const ModelProfile& profile, const Json& ds_config, int64_t world_size,
                         bool compat_determined)
    : profile_(profile),
      ds_config_(ds_config),
      world_size_(world_size),
      compat_determined_(compat_determined) {
  DSAT_CHECK(world_size >= 1);
}

StageMemory MemoryModel::ForStage(int stage) const {
  DSAT_CHECK(0 <= stage && stage <= 3, "stage {}", stage);
  const int64_t all = profile_.num_params;
  const int64_t trained = profile_.trainable_num_params;
  const bool fp16 = IsTrue(ds_config_, "/fp16/enabled");
  const bool half = compat_determined_ ? fp16 : fp16 || IsTrue(ds_config_, "/bf16/enabled");
  const int64_t width = half ? 2 : 4;
  const int64_t grad_width = compat_determined_ ? 4 : width;
  const int64_t moments = compat_determined_ ? 2 : OptimizerMoments(ds_config_);
  // A master copy of narrower parameters, unless they serve themselves.
  const auto is_bf16 = [&](const char* key) {
    return !compat_determined_ && IsTrue(ds_config_, "/bf16/enabled") && IsTrue(ds_config_, key);
  };
  const int64_t moment_width = is_bf16("/bf16/bf16_optimizer_states") ? 2 : 4;
  const int64_t master_width = half && !is_bf16("/bf16/bf16_master_weights_and_grads") ? 4 : 0;
  const int64_t optimizer_width = moments * moment_width + master_width;

  const engine::StateHomes homes = engine::ZeroStageHomes(stage);
  return {
      .param_bytes = Share(width * all, homes.param.placement, world_size_),
      .grad_bytes = Share(grad_width * trained, homes.grad.placement, world_size_),
      .optimizer_bytes = Share(optimizer_width * trained, homes.optimizer.placement, world_size_),
      .buffer_bytes = compat_determined_ ? 0 : width * BufferElems(stage),
      .gathered_bytes = compat_determined_ ? 0 : width * GatheredElems(homes),
      .activation_bytes_per_sample = profile_.activation_bytes_per_sample,
  };
}

int64_t MemoryModel::BufferElems(int stage) const {
  if (world_size_ == 1) return 0;
  const engine::ZeroConfig defaults;
  // No engine of ours fills more of a bucket than there are elements to send.
  const int64_t trained = profile_.trainable_num_params;
  const int64_t all = profile_.num_params;
  const Json* overlap = FindAtPointer(ds_config_, "/zero_optimization/overlap_comm");
  const bool given = overlap != nullptr && overlap->is_boolean();
  const bool overlaps = given ? overlap->get<bool>() : stage == 3;
  int64_t elems =
      std::min(Elems(ds_config_, "reduce_bucket_size", defaults.reduce_bucket_size), trained);
  if (overlaps) elems *= 2;
  if (stage == 1 || stage == 2) {
    elems +=
        std::min(Elems(ds_config_, "allgather_bucket_size", defaults.allgather_bucket_size), all);
  } else if (stage == 3) {
    elems += std::min(
        Elems(ds_config_, "stage3_prefetch_bucket_size", defaults.stage3_prefetch_bucket_size),
        all);
  }
  return elems;
}

// While one unit computes, the next one is fetched; and what is used again soon is kept.
int64_t MemoryModel::GatheredElems(const engine::StateHomes& homes) const {
  if (world_size_ == 1 || homes.param.placement != engine::Placement::kShard) return 0;
  const engine::ZeroConfig defaults;
  const int64_t kept = std::min(
      Elems(ds_config_, "stage3_max_reuse_distance", defaults.stage3_max_reuse_distance),
      Elems(ds_config_, "stage3_max_live_parameters", defaults.stage3_max_live_parameters));
  return std::min(std::max(profile_.two_units_num_params, kept), profile_.num_params);
}

int64_t MemoryModel::ApproxMaxMicroBatch(int stage) const {
  const StageMemory memory = ForStage(stage);
  const int64_t least = compat_determined_ ? 1 : 0;
  const int64_t sample = memory.activation_bytes_per_sample;
  const int64_t reserve = compat_determined_ ? sample : 0;
  const int64_t left = profile_.device_memory_bytes - memory.fixed_bytes() - reserve;
  if (profile_.device_memory_bytes <= 0) return 1;
  if (left < 0) return least;
  if (sample <= 0) return 1;
  return std::max(left / sample, least);
}

}  // namespace dsat
