// Settings besides the ds_config that a search may vary: arguments of the user's command,
// environment variables of the ranks, and arguments of the script's trainer that dsat's import hook
// sets. A trial's config has them in its section "dsat".
#pragma once

#include <map>
#include <string>

#include "base/json.h"

namespace dsat {

inline constexpr char kLaunchSection[] = "dsat";

// The JSON pointers of a flag such as "--num-workers" and of a variable in a trial's config.
std::string ArgumentPointer(const std::string& flag);
std::string VariablePointer(const std::string& name);
// The name of a key for users: "arguments.--num-workers", "environment.NAME"; of other pointers,
// the pointer. The inverse gives "" for a text that is none of these.
std::string NameOfPointer(const std::string& pointer);
std::string PointerOfName(const std::string& name);

// The JSON pointers of a trainer's arguments begin with this one (engine/config/keys.cc).
inline constexpr char kTrainerPrefix[] = "/dsat/trainer/";

// Flag -> value of a trial's config: a text, a number, or whether a switch is given.
std::map<std::string, Json> ArgumentsOf(const Json& ds_config);
// `environment`, the variables of an experiment, with those of a trial's config in their place.
std::map<std::string, std::string> VariablesOf(const Json& ds_config,
                                               std::map<std::string, std::string> environment);
// Argument -> value of a trial's config, an object.
Json TrainerArgumentsOf(const Json& ds_config);

// A value as a word of a command or the text of a variable.
std::string WordOf(const Json& value);

}  // namespace dsat
