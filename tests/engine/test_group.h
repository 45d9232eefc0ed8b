// The process groups that the contract suites run over: those of a host's ranks, or, over these,
// the kind that DSAT_TEST_GROUP names.
#ifndef DSAT_TESTS_ENGINE_TEST_GROUP_H_
#define DSAT_TESTS_ENGINE_TEST_GROUP_H_

#include <functional>
#include <memory>

#include "engine/backend/cuda/nccl_comm.h"
#include "engine/comm/process_group.h"
#include "engine/memory/memory_source.h"
#include "tests/engine/run_ranks.h"

namespace dsat::engine {

// The fake NCCL over host memory and the CPU's kernels.
NcclDevice HostNccl();

// Runs fn(group) on every rank of a group of `size`, as RunRanks does: a host's group ("", not
// set), or NCCL's over host memory ("nccl").
void RunGroups(int size, const std::function<void(ProcessGroup& group)>& fn);

}  // namespace dsat::engine

#endif  // DSAT_TESTS_ENGINE_TEST_GROUP_H_
