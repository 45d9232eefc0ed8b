// The section "dsat" of a trial's config.
#include "proto/launch_settings.h"

#include <fmt/format.h>

namespace dsat {
namespace {

constexpr char kArguments[] = "arguments";
constexpr char kEnvironment[] = "environment";

Json SectionOf(const Json& ds_config, const char* name) {
  const Json* found = FindAtPointer(ds_config, std::string("/") + kLaunchSection + "/" + name);
  return found != nullptr && found->is_object() ? *found : Json::object();
}

}  // namespace

std::string ArgumentPointer(const std::string& flag) {
  return (Json::json_pointer() / kLaunchSection / kArguments / flag).to_string();
}

std::string VariablePointer(const std::string& name) {
  return (Json::json_pointer() / kLaunchSection / kEnvironment / name).to_string();
}

std::string PointerOfName(const std::string& name) {
  if (name.starts_with('/')) return name;
  const size_t dot = name.find('.');
  const std::string section = name.substr(0, dot);
  if (dot == name.npos || (section != kArguments && section != kEnvironment)) return "";
  return (Json::json_pointer() / kLaunchSection / section / name.substr(dot + 1)).to_string();
}

std::string NameOfPointer(const std::string& pointer) {
  const Json::json_pointer parsed(pointer);
  if (parsed.empty()) return pointer;
  const std::string& last = parsed.back();
  if (ArgumentPointer(last) == pointer) return fmt::format("{}.{}", kArguments, last);
  if (VariablePointer(last) == pointer) return fmt::format("{}.{}", kEnvironment, last);
  return pointer;
}

std::map<std::string, Json> ArgumentsOf(const Json& ds_config) {
  return SectionOf(ds_config, kArguments).get<std::map<std::string, Json>>();
}

std::map<std::string, std::string> VariablesOf(const Json& ds_config,
                                               std::map<std::string, std::string> environment) {
  const Json section = SectionOf(ds_config, kEnvironment);
  for (const auto& [name, value] : section.items())
    environment[name] = WordOf(value);
  return environment;
}

Json TrainerArgumentsOf(const Json& ds_config) {
  return SectionOf(ds_config, "trainer");
}

std::string WordOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace dsat
