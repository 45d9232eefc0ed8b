// The table of ds_config keys that dsat knows: type, range, default, and what the built-in engine
// does with each. Validation, spelling suggestions, refusals, warnings and docs/ds_config.md all
// come from this one table.
#ifndef DSAT_ENGINE_CONFIG_KEYS_H_
#define DSAT_ENGINE_CONFIG_KEYS_H_

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace dsat::engine {

enum class KeyType {
  kSection,      // An object whose keys are all in the table.
  kOpenSection,  // An object that may hold further keys.
  kBool,
  kInt,      // A whole number, also if written 5e8.
  kNumber,   // A finite number.
  kText,     // A string, one of `choices` if there are any.
  kNumbers,  // An array of two numbers.
  kStage,    // ZeRO's stage: a whole number, "2" or a boolean.
  kAny,      // Left to DeepSpeed to check.
  kAlias,    // Another name of the key that `fallback` points to.
};

// What the built-in engine does with a value other than the default.
enum class Builtin {
  kHonours,  // What the key says.
  kWarns,    // Says by name that it has no such mechanism, and runs without.
  kRefuses,  // kUnimplemented: the run would not be what the config asks for.
  kFollows,  // Nothing by itself: another key of the section decides.
};

struct Key {
  const char* pointer;
  KeyType type;
  const char* fallback;  // The default as JSON text; for an alias its target.
  Builtin builtin;
  const char* note = "";
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;     // `min` itself is excluded.
  bool below_max = false;     // `max` itself is excluded.
  const char* choices = "";   // Valid texts, separated by blanks.
  const char* variants = "";  // Valid under these values of `type` (lower case) only.
  bool own = false;           // A parameter of the built-in engine's: DeepSpeed's fail on it.

  constexpr Key From(double value) const { return With(&Key::min, value); }
  constexpr Key To(double value) const { return With(&Key::max, value); }
  constexpr Key Above(double value) const { return From(value).With(&Key::above_min, true); }
  constexpr Key Below(double value) const { return To(value).With(&Key::below_max, true); }
  constexpr Key OneOf(const char* texts) const { return With(&Key::choices, texts); }
  constexpr Key For(const char* types) const { return With(&Key::variants, types); }
  constexpr Key Own() const { return With(&Key::own, true); }
  constexpr Key Note(const char* text) const { return With(&Key::note, text); }

 private:
  template <typename T>
  constexpr Key With(T Key::*member, T value) const {
    Key copy = *this;
    copy.*member = value;
    return copy;
  }
};

// All keys, a section before what it holds. Static storage.
std::span<const Key> Keys();

// The key at a pointer, or nullptr.
const Key* FindKey(std::string_view pointer);

// The names of the keys directly under a section's pointer ("" = top level) that are valid if the
// section around it has this `type` in lower case.
std::vector<std::string> KeyNames(std::string_view section, std::string_view type = "");

// True if `text` is one of the words of `words`, which blanks separate.
bool IsOneOf(std::string_view text, std::string_view words);

// The key's default; null if it has none of its own. REQUIRES: `key` is one of Keys().
const Json& DefaultValue(const Key& key);

// What a value of this key must be, for messages and docs: "an integer >= 1", "true or false".
std::string Expected(const Key& key);

// "" if `value` fits the key's type and range, else Expected(key).
std::string Misfit(const Key& key, const Json& value);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CONFIG_KEYS_H_
