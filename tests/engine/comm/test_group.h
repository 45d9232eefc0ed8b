// The process groups that the contract suites run over: the kind that DSAT_TEST_GROUP names.
#pragma once

#include <functional>
#include <memory>

#include "engine/backend/cuda/nccl_comm.h"
#include "engine/comm/process_group.h"
#include "engine/core/memory_source.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {

// The fake NCCL over host memory and the CPU's kernels.
NcclDevice HostNccl();

// Runs fn(group) on every rank of a group of `size`, as RunRanks does: a host's group (not set),
// one over TCP ("tcp"), or NCCL's over host memory and a host's group ("nccl").
void RunGroups(int size, const std::function<void(ProcessGroup& group)>& fn);

// Runs fn(group) on both ranks of a group of this process, rank 0, and a child.
void RunTwoProcesses(const std::function<void(ProcessGroup& group)>& fn);

}  // namespace dsat::engine
