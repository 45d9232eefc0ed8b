// The searched rows of the key table, less what has no effect.
#include "profiler/tuning_space.h"

#include <algorithm>
#include <vector>

#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "proto/search_policy.h"

namespace dsat {
namespace {

using engine::Key;

struct Place {
  int stage = 0;
  int64_t num_params = 0;  // 0 if it does not bound sizes.
  int64_t world_size = 1;
  bool published = false;
};

bool HasEffect(const Key& key, const Place& place) {
  return place.stage >= key.from_stage && (place.world_size > 1 || !key.several_ranks);
}

bool IsSearched(const Key& key, const Place& place) {
  if (place.published) return place.stage >= key.published_from;
  return HasEffect(key, place) && place.stage >= key.searched_from;
}

// Sizes end with the smallest that holds every parameter: larger ones are all alike.
std::vector<Json> ValuesOf(const Key& key, const Place& place) {
  std::vector<Json> values;
  for (const Json& value : Json::parse(key.values)) {
    values.push_back(value);
    if (key.up_to_params && place.num_params > 0 && value >= place.num_params) break;
  }
  return values;
}

constexpr char kMicroBatchKey[] = "/train_micro_batch_size_per_gpu";
constexpr char kAccumulationKey[] = "/gradient_accumulation_steps";

// The user's values replace those of the table. Keys that are not in the table come last.
std::vector<Knob> KnobsOf(const engine::KeyTable& keys, const Place& place,
                          const Json& user_space) {
  std::vector<Knob> knobs;
  for (const Key& key : keys) {
    const auto given = user_space.find(key.pointer);
    if (key.pointer == std::string_view(kMicroBatchKey)) continue;
    if (given != user_space.end()) {
      if (HasEffect(key, place)) knobs.push_back({.pointer = key.pointer, .values = *given});
    } else if (IsSearched(key, place)) {
      knobs.push_back({.pointer = key.pointer, .values = ValuesOf(key, place)});
    }
  }
  for (const auto& [pointer, values] : user_space.items()) {
    if (keys.Find(pointer) == nullptr) knobs.push_back({.pointer = pointer, .values = values});
  }
  return knobs;
}

// What is predicted at sizes 1, 2, 4, ..., up to twice the largest that fits.
std::vector<Forecast> ForecastsOf(const Predictor& predictor, Json ds_config, int64_t largest,
                                  int64_t accumulation) {
  ds_config.erase("train_batch_size");
  accumulation = std::min<int64_t>(accumulation, 2);
  SetAtPointer(ds_config, kAccumulationKey, accumulation);
  std::vector<Forecast> forecasts;
  for (int64_t size = 1; size <= std::max<int64_t>(2 * largest, 2); size *= 2) {
    SetAtPointer(ds_config, kMicroBatchKey, size);
    const Predicted predicted = predictor.Predict(ds_config);
    forecasts.push_back({.micro_batch_size = size,
                         .accumulation_steps = accumulation,
                         .peak_bytes = predicted.device.peak_bytes,
                         .compute_ms = predicted.compute_ms,
                         .update_ms = predicted.update_ms,
                         .link_ms = predicted.link_ms});
  }
  return forecasts;
}

// Fills in what is predicted of the submitted config at the space's stage, and the device memory
// that the predictor allows.
void PredictSizes(const Predictor& predictor, Json ds_config, StageSpace& space, bool& exact,
                  Workload& workload) {
  SetAtPointer(ds_config, "/zero_optimization/stage", space.stage);
  try {
    space.approx_max_micro_batch = predictor.LargestMicroBatch(ds_config);
    const Predicted predicted = predictor.Predict(ds_config);
    space.state_bytes = predicted.device.state_bytes;
    exact = predicted.exact;
    workload.device_memory_bytes = predicted.device.limit_bytes;
    space.forecasts = ForecastsOf(predictor, ds_config, space.approx_max_micro_batch,
                                  workload.accumulation_steps);
  } catch (const Error& error) {
    if (!IsRefusal(error)) throw;
    space.approx_max_micro_batch = 0;
  }
}

Assignment SubmittedAt(int stage, const Json& ds_config, const engine::KeyTable& keys,
                       const Json& user_space) {
  const engine::Settings settings = engine::Settings(ds_config, "ds_config", keys).AtStage(stage);
  Assignment submitted;
  for (const Key& key : keys) {
    const bool is_searched = key.values[0] != 0 || user_space.contains(key.pointer);
    if (is_searched) submitted[key.pointer] = settings.Get(key.pointer);
  }
  for (const auto& [pointer, values] : user_space.items()) {
    const Json* given = FindAtPointer(ds_config, pointer);
    if (keys.Find(pointer) == nullptr && given != nullptr) submitted[pointer] = *given;
  }
  submitted.erase(kMicroBatchKey);
  return submitted;
}

Workload WorkloadOf(const ModelProfile& profile, const Json& ds_config, int64_t world_size) {
  const engine::Settings settings(ds_config, "ds_config");
  const bool half = settings.Is("/fp16/enabled") || settings.Is("/bf16/enabled");
  engine::BatchSizes batch{.micro_batch_size = 1, .accumulation_steps = 1};
  const auto is_given = [&](const char* pointer) { return settings.Given(pointer) != nullptr; };
  if (is_given(kMicroBatchKey) || is_given("/train_batch_size"))
    batch = engine::ResolveBatchSizes(ds_config, "ds_config", world_size);
  return {.num_params = profile.num_params,
          .trainable_num_params = profile.trainable_num_params,
          .bytes_per_param = half ? 2 : 4,
          .data_parallel = engine::DataParallelSize(ds_config, "ds_config", world_size),
          .forward_flops_per_sample = profile.forward_flops_per_sample,
          .matmul_flops_per_s = profile.matmul_flops_per_s,
          .copy_bytes_per_s = profile.copy_bytes_per_s,
          .device_memory_bytes = profile.device_memory_bytes,
          .accumulation_steps = batch.accumulation_steps,
          .micro_batch_size = batch.micro_batch_size,
          .stage = settings.stage()};
}

}  // namespace

SearchSpace MakeSearchSpace(const Predictor& predictor, const ModelProfile& profile,
                            const Json& ds_config, const SearchOptions& options, int64_t world_size,
                            const Json& user_space, const engine::KeyTable& keys) {
  const bool published = PolicyOf(options).published_space;
  SearchSpace space;
  space.workload = WorkloadOf(profile, ds_config, world_size);
  space.divisible_by = options.divisible_by;
  space.micro_batch_sizes = user_space.value(kMicroBatchKey, std::vector<int64_t>());
  if (options.train_batch_size)
    space.samples_per_step = *options.train_batch_size / space.workload.data_parallel;
  for (const int stage : options.zero_stages) {
    const Place place{.stage = stage,
                      .num_params = published ? 0 : profile.num_params,
                      .world_size = world_size,
                      .published = published};
    space.stages.push_back({.stage = stage, .knobs = KnobsOf(keys, place, user_space)});
    space.stages.back().submitted = SubmittedAt(stage, ds_config, keys, user_space);
    PredictSizes(predictor, ds_config, space.stages.back(), space.exact, space.workload);
  }
  return space;
}

}  // namespace dsat
