// The formulas of docs/dev/methods.md; what is sharded comes from the placement table.
#include "profiler/memory_model.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace dsat {
namespace {

// No device holds as many; the sum of sizes up to it is an int64_t.
constexpr int64_t kMostElems = 1'000'000'000'000'000;

// Activations of a sample for those that checkpoints keep, where the profile has measured one of
// the two. A guess, because it depends on the model.
constexpr int64_t kRecomputed = 4;

// Values that the optimizer keeps for each parameter, master weights aside.
int64_t OptimizerMoments(const engine::Settings& settings) {
  const std::string name = settings.Lower("/optimizer/type");
  if (name == "lion" || name == "adagrad") return 1;
  if (name != "sgd") return 2;
  return settings.Number("/optimizer/params/momentum") != 0 ? 1 : 0;
}

int64_t Share(int64_t bytes, engine::Placement placement, int64_t world_size) {
  if (placement != engine::Placement::kShard) return bytes;
  return (bytes + world_size - 1) / world_size;
}

}  // namespace

MemoryModel::MemoryModel(const ModelProfile& profile, const Json& ds_config, int64_t world_size,
                         MemoryLaw law)
    : profile_(profile),
      settings_(ds_config, "ds_config"),
      world_size_(world_size),
      published_(law == MemoryLaw::kPublished),
      deepspeed_(law == MemoryLaw::kDeepSpeed) {
  DSAT_CHECK(world_size >= 1);
}

StageMemory MemoryModel::ForStage(int stage) const {
  DSAT_CHECK(0 <= stage && stage <= 3, "stage {}", stage);
  const int64_t all = profile_.num_params;
  const int64_t trained = profile_.trainable_num_params;
  const int64_t width = ParamWidth();
  const int64_t moments = published_ ? 2 : OptimizerMoments(settings_);
  const int64_t moment_width = IsBf16("/bf16/bf16_optimizer_states") ? 2 : 4;
  const int64_t optimizer_width = moments * moment_width + MasterWidth(stage);

  const double offloaded = OffloadedOptimizer(stage);
  const engine::StateHomes homes =
      engine::ZeroStageHomes(stage, offloaded > 0 ? engine::Tier::kHost : engine::Tier::kDevice);
  const int64_t params =
      Share(width * all, homes.param.placement, world_size_) + SecondaryBytes(stage);
  const int64_t optimizer =
      Share(optimizer_width * trained, homes.optimizer.placement, world_size_);
  const int64_t off_params = OffloadsParams(stage) ? params : 0;
  const auto off_optimizer = static_cast<int64_t>(offloaded * static_cast<double>(optimizer));
  // Where gradients are accumulated on the host, an update on the device needs f32 copies of its
  // own (deepspeed/runtime/zero/stage3.py, initialize_optimizer_states).
  const bool has_grads = homes.grad.tier == engine::Tier::kDevice;
  const int64_t grads =
      Share((has_grads ? GradWidth(stage) : 4) * trained, homes.grad.placement, world_size_);
  return {
      .param_bytes = params - off_params,
      .grad_bytes =
          has_grads ? grads : static_cast<int64_t>((1 - offloaded) * static_cast<double>(grads)),
      .optimizer_bytes = optimizer - off_optimizer,
      .buffer_bytes = published_ ? 0 : width * BufferElems(stage),
      .gathered_bytes = published_ ? 0 : width * GatheredElems(homes),
      .activation_bytes_per_sample = ActivationBytes(),
      .offloaded_bytes = off_params + off_optimizer,
  };
}

int64_t MemoryModel::ActivationBytes() const {
  const int64_t measured = profile_.activation_bytes_per_sample;
  const Json* now = settings_.Given("/dsat/trainer/gradient_checkpointing");
  const Json* before = FindAtPointer(profile_.trainer, "/gradient_checkpointing");
  if (now == nullptr || before == nullptr || *now == *before) return measured;
  return *now == true ? measured / kRecomputed : std::min(measured * kRecomputed, kMostElems);
}

bool MemoryModel::IsBf16(const char* key) const {
  return !published_ && settings_.Is("/bf16/enabled") && settings_.Is(key);
}

int64_t MemoryModel::ParamWidth() const {
  return settings_.Is("/fp16/enabled") || IsBf16("/bf16/enabled") ? 2 : 4;
}

// A copy of narrower parameters, unless they serve themselves. DeepSpeed's ZeRO optimizers copy
// parameters of any type (single_partition_of_fp32_groups in deepspeed/runtime/zero/
// stage_1_and_2.py, fp32_partitioned_groups_flat in stage3.py).
int64_t MemoryModel::MasterWidth(int stage) const {
  const bool is_own = IsBf16("/bf16/bf16_master_weights_and_grads");
  if (deepspeed_ && stage > 0) return is_own ? 2 : 4;
  return ParamWidth() == 2 && !is_own ? 4 : 0;
}

int64_t MemoryModel::GradWidth(int stage) const {
  if (published_) return 4;
  const std::string type = settings_.Text("/data_types/grad_accum_dtype");
  const int64_t width = type.empty() ? ParamWidth() : type.ends_with("32") ? 4 : 2;
  // Where DeepSpeed takes its BF16_Optimizer, the gradients of a pass stay besides those that are
  // accumulated (deepspeed/runtime/engine.py, _do_optimizer_sanity_check).
  const bool has_both = deepspeed_ && stage == 1 && IsBf16("/bf16/enabled") && width == 4 &&
                        OffloadedOptimizer(1) == 0;
  return has_both ? width + ParamWidth() : width;
}

int64_t MemoryModel::SecondaryBytes(int stage) const {
  const int64_t group = settings_.Int("/zero_optimization/zero_hpz_partition_size");
  if (!deepspeed_ || stage < 3 || group <= 1) return 0;
  return Share(ParamWidth() * profile_.num_params, engine::Placement::kShard, group);
}

double MemoryModel::OffloadedOptimizer(int stage) const {
  const std::string device = settings_.Text("/zero_optimization/offload_optimizer/device");
  if (published_ || stage == 0 || device == "none") return 0;
  return stage < 3 ? 1 : settings_.Number("/zero_optimization/offload_optimizer/ratio");
}

bool MemoryModel::OffloadsParams(int stage) const {
  return !published_ && stage == 3 &&
         settings_.Text("/zero_optimization/offload_param/device") != "none";
}

int64_t MemoryModel::BufferElems(int stage) const {
  const bool alone = world_size_ == 1;
  const int64_t all = profile_.num_params;
  const engine::Settings settings = settings_.AtStage(stage);
  // DeepSpeed allocates the bucket of contiguous gradients as a whole, a second one with overlap,
  // but not at stage 3 (deepspeed/runtime/zero/stage_1_and_2.py, setup_buckets; stage3.py,
  // _setup_for_real_optimizer). Another bucket holds no more than there is to send, nor does a
  // whole one on a CPU, where pages take memory once they are written.
  const bool is_whole = deepspeed_ && stage > 0 &&
                        (settings.Is("/zero_optimization/contiguous_gradients") ||
                         (stage < 3 && OffloadedOptimizer(stage) > 0));
  const int64_t used = alone && !is_whole ? 0 : profile_.trainable_num_params;
  const int64_t most = is_whole && profile_.device != "cpu" ? kMostElems : used;
  int64_t elems = std::min(settings.Int("/zero_optimization/reduce_bucket_size"), most);
  if (settings.Is("/zero_optimization/overlap_comm") && !(deepspeed_ && stage == 3)) elems *= 2;
  if (alone) return elems;
  if (stage == 1 || stage == 2) {
    elems += std::min(settings.Int("/zero_optimization/allgather_bucket_size"), all);
  } else if (stage == 3) {
    elems += std::min(settings.Int("/zero_optimization/stage3_prefetch_bucket_size"), all);
  }
  return elems;
}

// While one unit computes, the next one is fetched; and what is used again soon is kept.
int64_t MemoryModel::GatheredElems(const engine::StateHomes& homes) const {
  if (world_size_ == 1 || homes.param.placement != engine::Placement::kShard) return 0;
  const int64_t kept = std::min(settings_.Int("/zero_optimization/stage3_max_reuse_distance"),
                                settings_.Int("/zero_optimization/stage3_max_live_parameters"));
  return std::min(std::max(profile_.two_units_num_params, kept), profile_.num_params);
}

int64_t MemoryModel::ApproxMaxMicroBatch(int stage) const {
  const StageMemory memory = ForStage(stage);
  const int64_t least = published_ ? 1 : 0;
  const int64_t sample = memory.activation_bytes_per_sample;
  const int64_t reserve = published_ ? sample : 0;
  const int64_t left = profile_.device_memory_bytes - memory.fixed_bytes() - reserve;
  if (profile_.device_memory_bytes <= 0) return 1;
  if (left < 0) return least;
  if (sample <= 0) return 1;
  return std::max(left / sample, least);
}

}  // namespace dsat
