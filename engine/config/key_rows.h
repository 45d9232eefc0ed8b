// The rows of keys.cc and zero_keys.cc without their refinements, one function for each type of
// key. `fallback` is the default as JSON text.
#pragma once

#include <span>

#include "engine/config/key_table.h"

namespace dsat::engine {

// The values of a searched switch.
inline constexpr const char* kSwitch = "[true, false]";

constexpr Key Section(const char* pointer, const char* since, Builtin builtin = Builtin::kFollows) {
  return {pointer, since, KeyType::kSection, "{}", builtin};
}
constexpr Key Open(const char* pointer, const char* since, Builtin builtin = Builtin::kFollows) {
  return {pointer, since, KeyType::kOpenSection, "{}", builtin};
}
constexpr Key Flag(const char* pointer, const char* since, const char* fallback, Builtin builtin) {
  return {pointer, since, KeyType::kBool, fallback, builtin};
}
constexpr Key Int(const char* pointer, const char* since, const char* fallback, Builtin builtin) {
  return {pointer, since, KeyType::kInt, fallback, builtin};
}
constexpr Key Number(const char* pointer, const char* since, const char* fallback,
                     Builtin builtin) {
  return {pointer, since, KeyType::kNumber, fallback, builtin};
}
constexpr Key Text(const char* pointer, const char* since, const char* fallback, Builtin builtin) {
  return {pointer, since, KeyType::kText, fallback, builtin};
}
constexpr Key Any(const char* pointer, const char* since, const char* fallback, Builtin builtin) {
  return {pointer, since, KeyType::kAny, fallback, builtin};
}
constexpr Key Alias(const char* pointer, const char* since, const char* target) {
  return {pointer, since, KeyType::kAlias, target, Builtin::kFollows};
}

// A size in elements that decides when state moves, never what is computed.
constexpr Key Elems(const char* pointer, const char* since, const char* fallback, double min) {
  return Int(pointer, since, fallback, Builtin::kHonors).From(min).In(KeyUnit::kElems).Exact();
}

// The rows of the section zero_optimization.
std::span<const Key> ZeroKeys();

}  // namespace dsat::engine
