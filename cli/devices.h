// Devices by their names, or by files that describe them.
#pragma once

#include <cstdint>
#include <string>

#include "profiler/planner.h"

namespace dsat::cli {

inline constexpr const char* kDefaultGpu = "a100";

// The device of a name (engine::ClusterOf), or of a JSON file: {"like": NAME, ...}, with own
// figures in place of some of that device's (docs/estimate.md). Throws kInvalidArgument naming the
// file and the key, and as ReadJsonFile.
engine::Cluster ClusterFor(const std::string& device);

// Sets the bytes that `text` says, unless it is empty. Throws kInvalidArgument naming `what` for 0
// and as ParseBytes.
void SetSize(const std::string& text, const std::string& what, int64_t& bytes);

}  // namespace dsat::cli
