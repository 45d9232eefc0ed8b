// The combination rules: what DeepSpeed asserts about several keys together.
#pragma once

#include <span>

#include "engine/config/settings.h"

namespace dsat::engine {

struct Rule {
  const char* pointer;  // The key that the message names.
  bool refuses;         // If false, it warns.
  const char* text;     // Follows "<pointer> is <value>; ".
  bool (*broken)(const Settings&);
};

// All rules. Static storage.
std::span<const Rule> Rules();

}  // namespace dsat::engine
