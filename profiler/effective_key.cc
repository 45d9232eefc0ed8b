// Folding: keys without effect and defaults go, sizes are cut to what they can hold.
#include "profiler/effective_key.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "engine/config/settings.h"

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
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kExact = 9007199254740992;  // 2^53
    if (std::abs(number) <= kExact && std::floor(number) == number) {
      value = static_cast<int64_t>(number);
    }
  } else if (value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX) {
    value = value.get<int64_t>();
  }
}

class Folder {
 public:
  Folder(const engine::Settings& settings, int64_t world_size, int64_t num_params)
      : settings_(settings), world_size_(world_size), num_params_(num_params) {}

  // True if the key at this value runs as if it were not given. Cuts sizes.
  bool FoldsAway(const Key& key, Json& value) const {
    if (key.type == KeyType::kSection) return value.is_object() && value.empty();
    if (settings_.stage() < key.from_stage) return true;
    if (world_size_ == 1 && key.several_ranks) return true;
    value = Cut(key, value);
    return key.key_class != KeyClass::kSemantic &&
           value == Cut(key, settings_.keys().Default(key, settings_.stage()));
  }

 private:
  Json Cut(const Key& key, const Json& value) const {
    const bool cuts = key.up_to_params && num_params_ > 0 && value.is_number_integer();
    return cuts ? Json(std::min(value.get<int64_t>(), num_params_)) : value;
  }

  const engine::Settings& settings_;
  const int64_t world_size_;
  const int64_t num_params_;
};

}  // namespace

std::string EffectiveKey(const Json& ds_config, int64_t world_size, int64_t num_params,
                         const engine::KeyTable& keys) {
  Json config = ds_config;
  NormalizeNumbers(config);
  const engine::Settings settings(config, "ds_config", keys);
  const Folder folder(settings, world_size, num_params);
  // From the last row to the first, since a section may be empty once its keys are gone.
  for (const Key& key : keys.rows() | std::views::reverse) {
    const Json::json_pointer pointer(key.pointer);
    if (!config.contains(pointer) || !folder.FoldsAway(key, config[pointer])) continue;
    config[pointer.parent_pointer()].erase(pointer.back());
  }
  return config.dump();
}

}  // namespace dsat
