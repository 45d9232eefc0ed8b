// Folding: defaults in, keys without effect out, sizes cut to what they can hold.
#include "profiler/effective_key.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/config/ds_config.h"

namespace dsat {
namespace {

constexpr std::array kCommunicationKeys = {
    "allgather_bucket_size", "allgather_partitions",        "contiguous_gradients",
    "overlap_comm",          "reduce_bucket_size",          "reduce_scatter",
    "round_robin_gradients", "stage3_prefetch_bucket_size",
};
constexpr std::array kElemKeys = {
    "allgather_bucket_size",       "reduce_bucket_size",
    "stage3_max_live_parameters",  "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
};

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

void FillDefaults(Json& zero) {
  const engine::ZeroConfig defaults;
  const Json given = zero;
  zero = {
      {"stage", defaults.stage},
      {"contiguous_gradients", defaults.contiguous_gradients},
      {"reduce_scatter", defaults.reduce_scatter},
      {"overlap_comm", given.value("stage", Json(0)) == 3},
      {"allgather_partitions", defaults.allgather_partitions},
      {"reduce_bucket_size", defaults.reduce_bucket_size},
      {"allgather_bucket_size", defaults.allgather_bucket_size},
      {"stage3_prefetch_bucket_size", defaults.stage3_prefetch_bucket_size},
      {"stage3_param_persistence_threshold", defaults.stage3_param_persistence_threshold},
      {"stage3_max_live_parameters", defaults.stage3_max_live_parameters},
  };
  MergeJson(zero, given);
}

void DropInert(Json& zero, int64_t world_size) {
  const int stage = zero["stage"].is_number_integer() ? zero["stage"].get<int>() : 0;
  if (stage == 0) {
    zero.erase("allgather_bucket_size");
    zero.erase("allgather_partitions");
  }
  if (stage < 3) {
    for (auto it = zero.begin(); it != zero.end();) {
      it = it.key().starts_with("stage3_") ? zero.erase(it) : std::next(it);
    }
  }
  if (world_size == 1) {
    for (const char* key : kCommunicationKeys)
      zero.erase(key);
  }
}

}  // namespace

std::string EffectiveKey(const Json& ds_config, int64_t world_size, int64_t num_params) {
  Json config = ds_config;
  Json& zero = config["zero_optimization"];
  if (!zero.is_object()) zero = Json::object();
  FillDefaults(zero);
  NormalizeNumbers(config);
  DropInert(zero, world_size);
  for (const char* key : kElemKeys) {
    const auto found = zero.find(key);
    if (num_params > 0 && found != zero.end() && found->is_number_integer()) {
      *found = std::min(found->get<int64_t>(), num_params);
    }
  }
  return config.dump();
}

}  // namespace dsat
