// dsat estimate of a script: the memory that a training needs, found out on fake tensors.
#pragma once

#include <optional>

#include "base/json.h"
#include "cli/flags.h"

namespace dsat::cli {

// The request to DryRun (searcher/command/import_hook.h) if the flags name a command, or an
// experiment file that has one; nullopt for the built-in engine. Throws kInvalidArgument for flags
// that mean nothing for a script, and for a command that only a shell can run.
std::optional<Json> ScriptOf(const EstimateFlags& flags);

// Runs it and prints the answer. Returns the exit code. Throws as DryRun.
int EstimateScript(const Flags& flags, const Json& request);

}  // namespace dsat::cli
