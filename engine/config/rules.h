// The combination rules: what DeepSpeed asserts about several keys together.
#ifndef DSAT_ENGINE_CONFIG_RULES_H_
#define DSAT_ENGINE_CONFIG_RULES_H_

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

#endif  // DSAT_ENGINE_CONFIG_RULES_H_
