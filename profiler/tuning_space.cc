// The published knobs and values, less what has no effect.
#include "profiler/tuning_space.h"

#include <array>
#include <string>
#include <vector>

#include "engine/config/ds_config.h"

namespace dsat {
namespace {

constexpr std::array<int64_t, 8> kBucketElems = {1'000'000,     5'000'000,    10'000'000,
                                                 50'000'000,    100'000'000,  500'000'000,
                                                 1'000'000'000, 5'000'000'000};

Knob ZeroKnob(const std::string& key, std::vector<Json> values) {
  return {.pointer = "/zero_optimization/" + key, .values = std::move(values)};
}

// `enough` elements hold everything: larger buckets are the same.
Knob BucketKnob(const std::string& key, int64_t enough) {
  std::vector<Json> values;
  for (const int64_t elems : kBucketElems) {
    values.emplace_back(elems);
    if (elems >= enough) break;
  }
  return ZeroKnob(key, std::move(values));
}

std::vector<Knob> KnobsOf(int stage, int64_t num_params, int64_t world_size, bool compat) {
  if (world_size == 1 && !compat) return {};
  const int64_t enough = compat || num_params <= 0 ? INT64_MAX : num_params;
  std::vector<Knob> knobs = {BucketKnob("reduce_bucket_size", enough)};
  if (stage > 0 || compat) knobs.push_back(BucketKnob("allgather_bucket_size", enough));
  std::vector<std::string> switches;
  if (stage >= 2) switches = {"overlap_comm", "reduce_scatter", "contiguous_gradients"};
  if (stage == 3 && compat) switches.push_back("allgather_partitions");
  for (const std::string& key : switches)
    knobs.push_back(ZeroKnob(key, {true, false}));
  return knobs;
}

// Fills in what is predicted of the submitted config at the space's stage.
void PredictSizes(const Predictor& predictor, Json ds_config, StageSpace& space, bool& exact) {
  SetAtPointer(ds_config, "/zero_optimization/stage", space.stage);
  try {
    space.approx_max_micro_batch = predictor.LargestMicroBatch(ds_config);
    const Predicted predicted = predictor.Predict(ds_config);
    space.state_bytes = predicted.device.state_bytes;
    exact = predicted.exact;
  } catch (const Error& error) {
    if (!IsRefusal(error)) throw;
    space.approx_max_micro_batch = 0;
  }
}

}  // namespace

SearchSpace MakeSearchSpace(const Predictor& predictor, const ModelProfile& profile,
                            const Json& ds_config, const SearchOptions& options,
                            int64_t world_size) {
  const bool compat = options.compat_determined;
  SearchSpace space;
  for (const int stage : options.zero_stages) {
    space.stages.push_back(
        {.stage = stage, .knobs = KnobsOf(stage, profile.num_params, world_size, compat)});
    PredictSizes(predictor, ds_config, space.stages.back(), space.exact);
  }
  return space;
}

}  // namespace dsat
