// The published knobs and values, less what has no effect.
#include "profiler/tuning_space.h"

#include <array>
#include <string>
#include <vector>

#include "engine/config/ds_config.h"
#include "profiler/memory_model.h"

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

}  // namespace

SearchSpace MakeSearchSpace(const ModelProfile& profile, const Json& ds_config,
                            const SearchOptions& options, int64_t world_size) {
  const bool compat = options.compat_determined;
  const MemoryModel memory(profile, ds_config, world_size, compat);
  SearchSpace space;
  for (const int stage : options.zero_stages) {
    space.stages.push_back({.stage = stage,
                            .approx_max_micro_batch = memory.ApproxMaxMicroBatch(stage),
                            .knobs = KnobsOf(stage, profile.num_params, world_size, compat)});
  }
  return space;
}

}  // namespace dsat
