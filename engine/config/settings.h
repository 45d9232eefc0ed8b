// A ds_config in one spelling, and the questions that rules and the parser ask it.
#ifndef DSAT_ENGINE_CONFIG_SETTINGS_H_
#define DSAT_ENGINE_CONFIG_SETTINGS_H_

#include <cstdint>
#include <string>

#include "base/json.h"

namespace dsat::engine {

// True for "auto": to be settled by whoever runs the config.
bool IsAuto(const Json& value);

enum class Auto { kDrop, kKeep };

// The same config with one name for everything: nulls and, unless kept, "auto" values dropped,
// aliases and deprecated keys under their present names, `zero_optimization: true` as stage 1,
// whole numbers as integers. Throws kInvalidArgument "<source>: ..." if a key is given under two
// names.
Json CanonicalConfig(const Json& ds_config, Auto autos, const std::string& source);

// A config in its canonical form with DeepSpeed's defaults behind it; "auto" is the default.
// Pointers must be in the key table. Throws as CanonicalConfig.
class Settings {
 public:
  Settings(const Json& ds_config, const std::string& source);

  // The value given, or nullptr.
  const Json* Given(const std::string& pointer) const { return FindAtPointer(config_, pointer); }
  // True if the file has a value, "auto" included.
  bool Has(const std::string& pointer) const { return FindAtPointer(written_, pointer) != nullptr; }
  // The value given, or the default; null if there is neither.
  Json Get(const std::string& pointer) const;
  bool Is(const std::string& pointer) const { return Get(pointer) == true; }
  // REQUIRES: Get(pointer) is not null.
  int64_t Int(const std::string& pointer) const { return Get(pointer).get<int64_t>(); }
  double Number(const std::string& pointer) const { return Get(pointer).get<double>(); }
  // "" if there is none.
  std::string Text(const std::string& pointer) const;
  // Text in lower case: DeepSpeed's own optimizer and scheduler names.
  std::string Lower(const std::string& pointer) const;

 private:
  Json written_;
  Json config_;  // The same without "auto".
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CONFIG_SETTINGS_H_
