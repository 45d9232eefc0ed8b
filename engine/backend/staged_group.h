// Collectives over a device's memory that are staged through host memory, for ranks that share a
// GPU, which NCCL refuses, and for devices without a transport of their own.
#pragma once

#include <memory>

#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {

// Makes a group of the ranks of `host`, a group over host memory. Buffers are in `memory`; messages
// may be in `memory` or in host memory. Every call copies this rank's part to the host, calls
// `host`, and copies the result back. `copies` is a stream of the device. `memory` must outlive the
// group and the groups that are split from it.
std::unique_ptr<ProcessGroup> MakeStagedGroup(std::unique_ptr<ProcessGroup> host,
                                              MemorySource& memory, std::shared_ptr<Stream> copies);

}  // namespace dsat::engine
