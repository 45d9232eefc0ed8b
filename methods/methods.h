// The table of methods, and the rules for their options.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "methods/method.h"

namespace dsat {

struct MethodInfo {
  std::string name;
  std::string summary;  // One line for --help.
  std::unique_ptr<Method> (*make)(const SearchSpace& space, const SearchOptions& options);
};

// All methods, in the order shown to users.
std::span<const MethodInfo> Methods();

// The method of that name. Throws kInvalidArgument naming the known methods.
const MethodInfo& FindMethod(const std::string& name);

// Throws kInvalidArgument "--flag: <value> is ...; expected <range>" for the first option that
// is out of range or contradicts another. The rules hold for all methods.
void ValidateOptions(const SearchOptions& options);

}  // namespace dsat
