// Folding: keys without effect and defaults go, sizes are cut to what they can hold.
#include "profiler/effective_key.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>

namespace dsat {
namespace {

using engine::Key;
using engine::KeyClass;
using engine::KeyType;

// Whole numbers become integers, so that 5e8 and 500000000 print alike.
void NormalizeNumbers(Json& value) {
  if (value.is_structured()) {
    for (Json& child : value)
      NormalizeNumbers(child);
  } else if (const std::optional<int64_t> number = WholeNumber(value)) {
    value = *number;
  }
}

// Whether DeepSpeed allocates by the key at the stage.
bool SizesBuckets(const Key& key, const ExperimentSpec& spec, int stage) {
  return key.sizes_buckets && stage > 0 && !IsBuiltin(spec);
}

}  // namespace

bool HasEffect(const Key& key, const ExperimentSpec& spec, int stage) {
  if (stage < key.from_stage || stage > key.to_stage) return false;
  return spec.slots_per_trial > 1 || !key.several_ranks || SizesBuckets(key, spec, stage);
}

std::string EffectiveKey(const Json& ds_config, const ExperimentSpec& spec, int64_t num_params,
                         const engine::KeyTable& keys) {
  Json config = ds_config;
  NormalizeNumbers(config);
  const int stage = ZeroStage(config);
  const auto cut = [&](const Key& key, const Json& value) {
    const bool cuts = key.up_to_params && !SizesBuckets(key, spec, stage) && num_params > 0 &&
                      value.is_number_integer();
    return cuts ? Json(std::min(value.get<int64_t>(), num_params)) : value;
  };
  // True if the key at this value runs as if it were not given. Cuts sizes.
  const auto folds_away = [&](const Key& key, Json& value) {
    if (key.type == KeyType::kSection) return value.is_object() && value.empty();
    if (!HasEffect(key, spec, stage)) return true;
    value = cut(key, value);
    const bool may_depend = key.key_class == KeyClass::kSemantic && *key.values == '\0';
    return !may_depend && value == cut(key, keys.Default(key, stage));
  };
  // Folds what an object holds; `pointer` is its own.
  const std::function<void(Json&, const std::string&)> fold = [&](Json& object,
                                                                  const std::string& pointer) {
    for (auto it = object.begin(); it != object.end();) {
      const std::string at = pointer + "/" + it.key();
      const Key* key = keys.Find(at);
      if (it->is_object()) fold(*it, at);
      it = key != nullptr && folds_away(*key, *it) ? object.erase(it) : std::next(it);
    }
  };
  fold(config, "");
  return config.dump();
}

}  // namespace dsat
