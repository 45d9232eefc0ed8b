// Compares the numbers of releases.
#include "engine/config/releases.h"

#include <array>
#include <sstream>

namespace dsat::engine {
namespace {

std::array<int, 3> NumbersOf(const std::string& release) {
  std::array<int, 3> numbers{};
  std::istringstream text(release);
  char dot = 0;
  for (int& number : numbers)
    text >> number >> dot;
  return numbers;
}

}  // namespace

bool IsOlder(const std::string& release, const std::string& than) {
  return NumbersOf(release) < NumbersOf(than);
}

std::string NameIn(const std::string& release, const Key& key) {
  if (!IsOlder(release, key.since)) return key.pointer;
  for (const Key& other : Keys()) {
    const bool is_alias =
        other.type == KeyType::kAlias && key.pointer == std::string(other.fallback);
    if (is_alias && !IsOlder(release, other.since)) return other.pointer;
  }
  return "";
}

}  // namespace dsat::engine
