// The searched rows of the key table, less what has no effect.
#include "profiler/tuning_space.h"

#include <vector>

#include "profiler/memory_model.h"

namespace dsat {
namespace {

using engine::Key;

struct Place {
  int stage = 0;
  int64_t num_params = 0;  // 0 if it does not bound sizes.
  int64_t world_size = 1;
  bool compat = false;
};

bool IsSearched(const Key& key, const Place& place) {
  if (place.compat) return place.stage >= key.published_from;
  const bool has_effect =
      place.stage >= key.from_stage && (place.world_size > 1 || !key.several_ranks);
  return has_effect && place.stage >= key.searched_from;
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

std::vector<Knob> KnobsOf(const engine::KeyTable& keys, const Place& place) {
  std::vector<Knob> knobs;
  for (const Key& key : keys) {
    if (!IsSearched(key, place)) continue;
    knobs.push_back({.pointer = key.pointer, .values = ValuesOf(key, place)});
  }
  return knobs;
}

}  // namespace

SearchSpace MakeSearchSpace(const ModelProfile& profile, const Json& ds_config,
                            const SearchOptions& options, int64_t world_size,
                            const engine::KeyTable& keys) {
  const bool compat = options.compat_determined;
  const MemoryModel memory(profile, ds_config, world_size, compat);
  SearchSpace space;
  for (const int stage : options.zero_stages) {
    const Place place{.stage = stage,
                      .num_params = compat ? 0 : profile.num_params,
                      .world_size = world_size,
                      .compat = compat};
    space.stages.push_back({.stage = stage,
                            .approx_max_micro_batch = memory.ApproxMaxMicroBatch(stage),
                            .knobs = KnobsOf(keys, place)});
  }
  return space;
}

}  // namespace dsat
