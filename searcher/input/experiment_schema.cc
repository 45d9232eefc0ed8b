// Checks values by the part of JSON Schema that the experiment file needs.
#include "searcher/input/experiment_schema.h"

#include <algorithm>
#include <optional>

namespace dsat {

const Json* FindExperimentKey(const std::string& pointer) {
  static const Json schema = Json::parse(kExperimentSchema);
  std::string at;
  for (const char c : pointer)
    at += c == '/' ? "/properties/" : std::string(1, c);
  return FindAtPointer(schema, at);
}

bool Fits(const Json& schema, const Json& value) {
  const Json types = schema.value("type", Json::array());
  const Json words = schema.value("enum", Json::array());
  const auto has_type = [&](const Json& type) {
    if (type == "integer") return WholeNumber(value).has_value();
    if (type == "string") return value.is_string();
    return type == "array" ? value.is_array() : value.is_object();
  };
  if (!types.empty() && std::ranges::none_of(types, has_type)) return false;
  if (!words.empty() && std::ranges::find(words, value) == words.end()) return false;
  if (value == "") return schema.value("minLength", 0) == 0;
  const std::optional<int64_t> number = WholeNumber(value);
  return !number || (*number >= schema.value("minimum", *number) &&
                     *number <= schema.value("maximum", *number));
}

}  // namespace dsat
