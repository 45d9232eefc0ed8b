// The one check of a config against everything that DeepSpeed asks of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/config/batch.h"
#include "engine/config/settings.h"

namespace dsat::engine {

// A combination rule: what DeepSpeed asserts about several keys together.
struct Rule {
  const char* pointer;  // The key that the message names.
  bool refuses;         // If false, it warns.
  const char* text;     // Follows "<pointer> is <value>; ".
  bool (*broken)(const Settings&);
};

// All rules. Static storage.
std::span<const Rule> Rules();

// A config that has passed the check.
struct CheckedConfig {
  Settings settings;
  BatchSizes batch;
  std::vector<std::string> warnings;  // One line each, for keys that DeepSpeed ignores.
};

// Checks a config against every rule of DeepSpeed's that can be checked without running it: types,
// ranges, unknown keys with the nearest valid one, combinations, batch sizes. For both launch
// targets. Throws kInvalidArgument "<source>: /json/pointer is <value>; expected <range>".
CheckedConfig ValidateDsConfig(const Json& ds_config, const std::string& source, int64_t world_size,
                               const KeyTable& keys = Keys());

// Throws kInvalidArgument if the config is no object. ValidateDsConfig does so first.
void CheckIsObject(const Json& ds_config, const std::string& source);

// `ds_config` without the keys that are not in the table, of those at the pointers that are the
// names in `searched`: a user may search what the table does not know yet, and a check sees only
// the rest.
Json KnownPart(Json ds_config, const Json& searched);

// Throws kInvalidArgument naming a key that is given and that DeepSpeed does not know: one of the
// built-in engine's own, in a config for a DeepSpeed script.
void RefuseOwnKeys(const Json& ds_config, const std::string& source);

}  // namespace dsat::engine
