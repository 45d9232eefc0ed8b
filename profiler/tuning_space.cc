// The searched rows of the key table, less what has no effect.
#include "profiler/tuning_space.h"

#include <vector>

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

bool IsSearched(const Key& key, const Place& place) {
  if (place.published) return place.stage >= key.published_from;
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
                            const Json& ds_config, const SearchOptions& options, int64_t world_size,
                            const engine::KeyTable& keys) {
  const bool published = PolicyOf(options).published_space;
  SearchSpace space;
  for (const int stage : options.zero_stages) {
    const Place place{.stage = stage,
                      .num_params = published ? 0 : profile.num_params,
                      .world_size = world_size,
                      .published = published};
    space.stages.push_back({.stage = stage, .knobs = KnobsOf(keys, place)});
    PredictSizes(predictor, ds_config, space.stages.back(), space.exact);
  }
  return space;
}

}  // namespace dsat
