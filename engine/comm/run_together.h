// Runs work that may fail on one rank, such as writing a file, so that the others do not wait
// forever.
#pragma once

#include <functional>
#include <string>

#include "engine/comm/process_group.h"

namespace dsat::engine {

// The text that rank `root` has, on every rank. A collective call.
std::string TextOfRank(ProcessGroup& group, int root, const std::string& text);

// Runs `work` on every rank and waits for all. Rethrows the exception of this rank, or throws
// kAborted "<what>: rank R: <message>" with the message of the last rank on which it failed. A
// collective call, after which the group remains usable. REQUIRES: `work` issues no collectives.
void RunTogether(ProcessGroup& group, const char* what, const std::function<void()>& work);

}  // namespace dsat::engine
