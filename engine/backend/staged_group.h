// Collectives over a device's memory by way of host memory: for ranks that share a GPU, which NCCL
// refuses, and for devices without a transport of their own.
#ifndef DSAT_ENGINE_BACKEND_STAGED_GROUP_H_
#define DSAT_ENGINE_BACKEND_STAGED_GROUP_H_

#include <memory>

#include "engine/backend/kernels.h"
#include "engine/comm/process_group.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {

// The ranks of `host`, a group over host memory; buffers are `memory`, messages may be that or the
// host's. Every call copies this rank's part there, lets `host` work, and copies it back. `copies`
// are kernels of the device, used for nothing else: collectives run beside this rank's kernels.
// `memory` must outlive the group and those split off.
std::unique_ptr<ProcessGroup> MakeStagedGroup(std::unique_ptr<ProcessGroup> host,
                                              MemorySource& memory,
                                              std::shared_ptr<Kernels> copies);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_STAGED_GROUP_H_
