// Configurations are compared key by key, with the defaults of keys that one of them leaves out.
#include "searcher/search/config_change.h"

#include <algorithm>

#include "engine/config/keys.h"
#include "engine/config/settings.h"

namespace dsat {

std::vector<std::string> ChangedKeys(const Json& from, const Json& to) {
  const Json was = from.flatten(), is = to.flatten();
  std::vector<std::string> keys;
  for (const auto& [pointer, value] : was.items()) {
    if (!is.contains(pointer) || is.at(pointer) != value) keys.push_back(pointer);
  }
  for (const auto& [pointer, value] : is.items()) {
    if (!was.contains(pointer)) keys.push_back(pointer);
  }
  return keys;
}

std::string ShortName(const std::string& pointer) {
  const std::string zero = "/zero_optimization/";
  if (pointer.starts_with(zero)) {
    std::string name = pointer.substr(zero.size());
    std::ranges::replace(name, '/', '.');
    return name;
  }
  return pointer.substr(pointer.rfind('/') + 1);
}

std::string ShortValue(const Json& value) {
  const std::optional<int64_t> whole = WholeNumber(value);
  std::string text = whole ? std::to_string(*whole) : value.dump();
  const size_t last_digit = text.find_last_not_of('0');
  const size_t zeros = last_digit == text.npos ? 0 : text.size() - 1 - last_digit;
  if (!whole || zeros < 4) return text;
  return fmt::format("{}e{}", text.substr(0, text.size() - zeros), zeros);
}

std::vector<KeyChange> ChangesOf(const Json& from, const Json& to) {
  // Whether a key of `to` has its default, which is that of all releases of DeepSpeed.
  const engine::Settings settings(to, "ds_config");
  const auto is_default = [&settings](const std::string& pointer) {
    const engine::Key* key = engine::Keys().Find(pointer);
    return key != nullptr && *key->changed == '\0' && !settings.Differs(*key);
  };
  std::vector<KeyChange> changes;
  for (const std::string& pointer : ChangedKeys(from, to)) {
    const Json* was = FindAtPointer(from, pointer);
    const Json* is = FindAtPointer(to, pointer);
    if (was == nullptr && is != nullptr && is_default(pointer)) continue;
    changes.push_back({ShortName(pointer), was == nullptr ? "" : ShortValue(*was),
                       is == nullptr ? "(default)" : ShortValue(*is)});
  }
  return changes;
}

std::string Describe(const std::vector<KeyChange>& changes) {
  std::string text;
  for (const KeyChange& change : changes) {
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", change.name,
                        change.was.empty() ? "" : change.was + " -> ", change.is);
  }
  return text;
}

}  // namespace dsat
