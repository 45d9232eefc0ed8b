// A ds_config in one spelling, and the questions that rules and the parser ask it.
#pragma once

#include <cstdint>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "engine/config/keys.h"

namespace dsat::engine {

// True for "auto", a value that the program that runs the config fills in.
bool IsAuto(const Json& value);

// Takes the value at a JSON pointer out of the config; null if there is none.
Json Take(Json& config, const std::string& pointer);

enum class Auto { kDrop, kKeep };

// The same config with one name for every key: nulls and, unless kept, "auto" values are dropped,
// aliases and deprecated keys get their present names, `zero_optimization: true` becomes stage 1,
// and whole numbers become integers. Throws kInvalidArgument "<source>: ..." if a key is given
// under two names.
Json CanonicalConfig(const Json& ds_config, Auto autos, const std::string& source,
                     const KeyTable& keys = Keys());

// How everything in dsat reads a ds_config: its canonical form with the defaults of the key table
// behind it. "auto" is the default. Pointers must be in the table, unless stated otherwise; the
// table must outlive this.
class Settings {
 public:
  // Throws as CanonicalConfig. REQUIRES: `ds_config` is an object.
  Settings(const Json& ds_config, const std::string& source, const KeyTable& keys = Keys());

  // The same settings at another ZeRO stage.
  Settings AtStage(int stage) const;

  const KeyTable& keys() const { return *keys_; }
  int stage() const { return stage_; }
  // The value given, or nullptr.
  const Json* Given(const std::string& pointer) const { return FindAtPointer(config_, pointer); }
  // True if the file has a value, "auto" included.
  bool Has(const std::string& pointer) const { return FindAtPointer(written_, pointer) != nullptr; }
  // The value given, or the default at this stage and for the section's type; null if there is
  // neither.
  Json Get(const std::string& pointer) const;
  // The same at any pointer, such as that of a key of the user's own.
  Json ValueOrNull(const std::string& pointer) const;
  bool Is(const std::string& pointer) const { return Get(pointer) == true; }
  // Whether parameters have 16 bits.
  bool IsHalf() const { return Is("/fp16/enabled") || Is("/bf16/enabled"); }
  // REQUIRES: Get(pointer) is a number.
  int64_t Int(const std::string& pointer) const { return Get(pointer).get<int64_t>(); }
  double Number(const std::string& pointer) const { return Get(pointer).get<double>(); }
  // "" if there is none.
  std::string Text(const std::string& pointer) const;
  // Text in lower case: how DeepSpeed compares the names of its own optimizers and schedulers.
  std::string Lower(const std::string& pointer) const { return LowerCase(Text(pointer)); }
  // True if the key has a value other than its default.
  bool Differs(const Key& key) const;

 private:
  const Json& DefaultOf(const Key& key) const;

  const KeyTable* keys_;
  Json written_;
  Json config_;  // The same without "auto".
  int stage_ = 0;
};

}  // namespace dsat::engine
