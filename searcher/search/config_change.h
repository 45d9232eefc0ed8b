// The differences between two ds_configs, for people and for the comparison of losses.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace dsat {

// The keys whose values differ as they are written, as JSON pointers: first those of `from`, then
// those that only `to` has.
std::vector<std::string> ChangedKeys(const Json& from, const Json& to);

// The last word of a pointer, with the section before it for keys of offload: "device" says little,
// "offload_param.device" enough.
std::string ShortName(const std::string& pointer);

// 5000000 and 5e6 as "5e6"; other values as JSON.
std::string ShortValue(const Json& value);

// A change at one key.
struct KeyChange {
  std::string name;  // ShortName of the key.
  std::string was;   // "" if the key is new.
  std::string is;    // "(default)" if the key is gone.
  bool operator==(const KeyChange&) const = default;
};

// Returns the changes from `from` to `to`. A default that `to` writes out is no change.
std::vector<KeyChange> ChangesOf(const Json& from, const Json& to);
// Changes in words: "stage 1 -> 2, micro-batch 4 -> 16, reduce_bucket_size 5e8"; "" if nothing.
std::string Describe(const std::vector<KeyChange>& changes);

}  // namespace dsat
