// A table of ds_config keys: one row says everything about a key (the rows are in keys.cc).
//
// Defaults, validation, spelling suggestions, refusals, warnings, the folding of equal
// configurations, the memory model, the search space and docs/ds_config.md read these rows.
// tests/profiler/new_key_test.cc shows what one more row does.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
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
  kStage,    // The ZeRO stage: a whole number, "2" or a boolean.
  kAny,      // Left to DeepSpeed to check.
  kAlias,    // Another name of the key that `fallback` points to.
};

// The built-in engine's reaction to a value other than the default.
enum class Builtin {
  kHonors,   // It does what the key says.
  kWarns,    // It says by name that it has no such mechanism, and runs without it.
  kRefuses,  // It throws kUnimplemented: the run would not be what the config asks for.
  kFollows,  // The key does nothing by itself: another key of the section decides.
};

// The effect that a change of the value can have.
enum class KeyClass {
  kExact,     // It changes no result: only time and memory.
  kRounding,  // It changes the order of the same sums, and so the last bits.
  kSemantic,  // It changes what is learned.
};

// The unit that a number counts.
enum class KeyUnit { kNone, kElems, kBytes };

inline constexpr int kNumZeroStages = 4;

struct Key {
  const char* pointer;  // A JSON pointer.
  const char* since;    // The first DeepSpeed release that names it; "" if none does.
  KeyType type;
  const char* fallback;  // The default as JSON text; for an alias the pointer of its key.
  Builtin builtin;
  const char* note = "";
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;     // `min` itself is excluded.
  bool below_max = false;     // `max` itself is excluded.
  const char* choices = "";   // The valid texts, separated by blanks.
  const char* known = "";     // The texts that the built-in engine knows, in any case of letters.
  const char* variants = "";  // Valid only if the section's `type` (lower case) is one of these.
  const char* members = "";   // Further names in an open section; "" if any name may be there.
  bool own = false;           // A key of the built-in engine alone: DeepSpeed fails on it.
  const char* until = "";     // The first DeepSpeed release without it; "" if the newest has it.
  KeyUnit unit = KeyUnit::kNone;
  KeyClass key_class = KeyClass::kSemantic;
  // From this ZeRO stage on the default is `stage_fallback`.
  int fallback_stage = kNumZeroStages;
  const char* stage_fallback = "";
  // Releases of DeepSpeed before `changed` have the default `earlier`; "" if all have the same.
  const char* changed = "";
  const char* earlier = "";
  // If the section's `type` is this one, the default is `type_fallback`.
  const char* fallback_type = "";
  const char* type_fallback = "";
  int from_stage = 0;                 // Below this ZeRO stage the key has no effect.
  bool needs_stage = false;           // Below from_stage a value other than the default is refused.
  int to_stage = kNumZeroStages - 1;  // Above this one it has no effect either.
  bool several_ranks = false;         // On one rank the key has no effect.
  bool up_to_params = false;          // All sizes above the model's number of parameters act alike.
  // DeepSpeed's ZeRO optimizers allocate buckets by the key (setup_buckets in
  // deepspeed/runtime/zero/stage_1_and_2.py): for a script it acts on one rank, too, and sizes do
  // not act alike.
  bool sizes_buckets = false;
  // The values that a search draws, as a JSON array, and from which ZeRO stage on it does: in
  // dsat's own search space, in the wide one alone (--space wide), and in the one that Determined
  // published. A search draws those of a semantic key only if the user allows it (--allow
  // semantic), then in every space from `wide_from` on, besides the submitted value.
  const char* values = "";
  int searched_from = kNumZeroStages;
  int wide_from = kNumZeroStages;
  int published_from = kNumZeroStages;
  // A wide search varies the key only where one of these other keys, separated by blanks, has the
  // value `only_value`, JSON text, or differs from its default if that is "".
  const char* only_with = "";
  const char* only_value = "";
  // The values differ in where memory is needed and in what a step is made of: the search predicts
  // each as a place of its own (proto/experiment.h).
  bool structural = false;
  // A user's script may ignore the key, so a search for a script does not vary it by itself.
  bool builtin_only = false;
  bool needs_gpu = false;  // A search on a machine without GPUs does not vary it by itself either.
  // A search draws only 1 and proper divisors of the number of ranks.
  bool divides_ranks = false;
  // Ranks share samples, tensors or experts by the key: a search draws values with which they can
  // (engine/config/batch.h), and nothing predicts what they change.
  bool splits_ranks = false;
  // The plan of the built-in engine does not show the effect; only measurements do.
  bool beyond_plan = false;

  // A copy with another value. It stands before its uses, because clang evaluates them at once.
  template <typename T>
  constexpr Key With(T Key::*member, T value) const {
    Key copy = *this;
    copy.*member = value;
    return copy;
  }
  constexpr Key From(double value) const { return With(&Key::min, value); }
  constexpr Key To(double value) const { return With(&Key::max, value); }
  constexpr Key Above(double value) const { return From(value).With(&Key::above_min, true); }
  constexpr Key Below(double value) const { return To(value).With(&Key::below_max, true); }
  constexpr Key OneOf(const char* texts) const { return With(&Key::choices, texts); }
  constexpr Key Known(const char* texts) const { return With(&Key::known, texts); }
  constexpr Key For(const char* types) const { return With(&Key::variants, types); }
  constexpr Key Holds(const char* names) const { return With(&Key::members, names); }
  constexpr Key Until(const char* release) const { return With(&Key::until, release); }
  constexpr Key Own() const { return With(&Key::own, true); }
  constexpr Key Note(const char* text) const { return With(&Key::note, text); }
  constexpr Key In(KeyUnit value) const { return With(&Key::unit, value); }
  constexpr Key Exact() const { return With(&Key::key_class, KeyClass::kExact); }
  constexpr Key Rounding() const { return With(&Key::key_class, KeyClass::kRounding); }
  constexpr Key DefaultFromStage(int stage, const char* json) const {
    return With(&Key::fallback_stage, stage).With(&Key::stage_fallback, json);
  }
  constexpr Key ChangedIn(const char* release, const char* json) const {
    return With(&Key::changed, release).With(&Key::earlier, json);
  }
  constexpr Key DefaultFor(const char* type, const char* json) const {
    return With(&Key::fallback_type, type).With(&Key::type_fallback, json);
  }
  constexpr Key FromStage(int stage) const { return With(&Key::from_stage, stage); }
  constexpr Key NeedsStage(int stage) const {
    return FromStage(stage).With(&Key::needs_stage, true);
  }
  constexpr Key ToStage(int stage) const { return With(&Key::to_stage, stage); }
  constexpr Key SeveralRanks() const { return With(&Key::several_ranks, true); }
  constexpr Key UpToParams() const { return With(&Key::up_to_params, true); }
  constexpr Key SizesBuckets() const { return With(&Key::sizes_buckets, true); }
  constexpr Key WideFromStage(int stage, const char* json, const char* others = "",
                              const char* value = "") const {
    return With(&Key::values, json)
        .With(&Key::wide_from, stage)
        .With(&Key::only_with, others)
        .With(&Key::only_value, value);
  }
  constexpr Key PlacesFromStage(int stage, const char* json, const char* other = "") const {
    return WideFromStage(stage, json, other).With(&Key::structural, true);
  }
  constexpr Key BuiltinOnly() const { return With(&Key::builtin_only, true); }
  constexpr Key NeedsGpu() const { return With(&Key::needs_gpu, true); }
  constexpr Key DividesRanks() const { return With(&Key::divides_ranks, true); }
  constexpr Key SplitsRanks() const { return SeveralRanks().With(&Key::splits_ranks, true); }
  constexpr Key BeyondPlan() const { return With(&Key::beyond_plan, true); }
  constexpr Key SearchedFromStage(int stage, const char* json) const {
    return PublishedFromStage(stage, json).With(&Key::searched_from, stage);
  }
  constexpr Key PublishedFromStage(int stage, const char* json) const {
    return With(&Key::values, json).With(&Key::published_from, stage);
  }
};

// Rows and what follows from them. Thread-safe.
class KeyTable {
 public:
  // The rows, a section before the keys that it holds; searched keys in the order of drawing. Their
  // texts must outlive the table. REQUIRES: defaults and searched values are JSON.
  explicit KeyTable(std::vector<Key> rows);

  auto begin() const { return rows_.begin(); }
  auto end() const { return rows_.end(); }

  // The key at a pointer, or nullptr.
  const Key* Find(std::string_view pointer) const;
  // The key that an alias stands for; of every other key, itself.
  const Key& Target(const Key& key) const;
  // The names of the keys directly under a section's pointer ("" = top level) that are valid if the
  // section has this `type` in lower case.
  std::vector<std::string> Names(std::string_view section, std::string_view type = "") const;
  // The default at a ZeRO stage if the key's section has this `type` in lower case; null if the key
  // has none of its own. REQUIRES: `key` is a row.
  const Json& Default(const Key& key, int stage = 0, std::string_view type = "") const;
  // Says what a value of the key must be, for messages and docs: "an integer >= 1", "true or
  // false".
  std::string Expected(const Key& key) const;
  // "" if `value` fits the key's type and range, else Expected(key).
  std::string Misfit(const Key& key, const Json& value) const;

 private:
  bool Fits(const Key& key, const Json& value) const;

  std::vector<Key> rows_;
  std::vector<Json> defaults_;        // The default of each row.
  std::vector<Json> stage_defaults_;  // Each row's default from its `fallback_stage` on.
  std::vector<Json> type_defaults_;   // Each row's default for its `fallback_type`.
  std::unordered_map<std::string_view, size_t> by_pointer_;
};

// True if `text` is one of the words of `words`, which blanks separate.
bool IsOneOf(std::string_view text, std::string_view words);

}  // namespace dsat::engine
