// The traces of all ranks as one JSON value that chrome://tracing and Perfetto open (the "JSON
// Object Format" of Google's Trace Event Format): a process per rank, a thread per lane.
#pragma once

#include <string>

#include "engine/comm/process_group.h"
#include "engine/core/trace.h"

namespace dsat::engine {

// Returns the text on rank 0 and "" on the others. A collective call.
std::string GatherTraces(const Trace& trace, ProcessGroup& group);

}  // namespace dsat::engine
