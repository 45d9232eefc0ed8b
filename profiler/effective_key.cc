// Folding: keys without effect and defaults go, sizes are cut to what they can hold.
#include "profiler/effective_key.h"

#include <algorithm>
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

class Folder {
 public:
  Folder(const engine::KeyTable& keys, int stage, const ExperimentSpec& spec, int64_t num_params)
      : keys_(keys), stage_(stage), spec_(spec), num_params_(num_params) {}

  // Folds what an object holds; `pointer` is its own.
  void Fold(Json& object, const std::string& pointer) const {
    for (auto it = object.begin(); it != object.end();) {
      const std::string at = pointer + "/" + it.key();
      const Key* key = keys_.Find(at);
      if (it->is_object()) Fold(*it, at);
      it = key != nullptr && FoldsAway(*key, *it) ? object.erase(it) : std::next(it);
    }
  }

 private:
  // True if the key at this value runs as if it were not given. Cuts sizes.
  bool FoldsAway(const Key& key, Json& value) const {
    if (key.type == KeyType::kSection) return value.is_object() && value.empty();
    if (!HasEffect(key, spec_, stage_)) return true;
    value = Cut(key, value);
    const bool may_depend = key.key_class == KeyClass::kSemantic && *key.values == '\0';
    return !may_depend && value == Cut(key, keys_.Default(key, stage_));
  }

  Json Cut(const Key& key, const Json& value) const {
    const bool cuts = key.up_to_params && !SizesBuckets(key, spec_, stage_) && num_params_ > 0 &&
                      value.is_number_integer();
    return cuts ? Json(std::min(value.get<int64_t>(), num_params_)) : value;
  }

  const engine::KeyTable& keys_;
  const int stage_;
  const ExperimentSpec& spec_;
  const int64_t num_params_;
};

}  // namespace

bool HasEffect(const Key& key, const ExperimentSpec& spec, int stage) {
  if (stage < key.from_stage || stage > key.to_stage) return false;
  return spec.slots_per_trial > 1 || !key.several_ranks || SizesBuckets(key, spec, stage);
}

std::string EffectiveKey(const Json& ds_config, const ExperimentSpec& spec, int64_t num_params,
                         const engine::KeyTable& keys) {
  Json config = ds_config;
  NormalizeNumbers(config);
  Folder(keys, ZeroStage(config), spec, num_params).Fold(config, "");
  return config.dump();
}

}  // namespace dsat
