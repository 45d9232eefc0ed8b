// The keys of DeepSpeed's ds_config, with those that dsat adds.
#pragma once

#include <string>

#include "engine/config/key_table.h"

namespace dsat::engine {

// Static storage.
const KeyTable& Keys();

// Whether a release such as "0.16.4+cu121" comes before another.
bool IsOlder(const std::string& release, const std::string& than);

// The name by which a release knows `key`: its own, or that of an alias if the key is newer; "" if
// the release has neither. REQUIRES: `key` is no alias.
std::string NameIn(const std::string& release, const Key& key);

}  // namespace dsat::engine
