// Collectives and messages between GPUs by NCCL: one GPU per rank.
#pragma once

#include <memory>
#include <string>

#include "engine/backend/cuda/nccl_comm.h"
#include "engine/comm/process_group.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {

// Makes a group of the ranks of `host`, a group over host memory. Each rank has a GPU of its own.
// Buffers are in `memory`; messages may be in `memory` or in host memory. A collective call.
//
// Before every call the ranks that take part in it synchronize over `host`, whose errors name ranks
// that make another call, end, leave or do not arrive. Then NCCL is given the work, and the call
// returns: NcclComm::Run says where errors of the work are thrown. A group is broken after any
// error except OutOfMemory.
//
// A Send waits until the peer's host calls Recv. An Exchange is one group call of NCCL on both
// sides, which NCCL requires for messages in both directions (its documentation, "Point-to-point
// communication"). Two ranks that Send to each other get an error. `host` carries messages in host
// memory.
//
// NCCL requires that communicators are used one after another, in the same order on all ranks
// ("Using multiple NCCL communicators concurrently"). Ranks that are in several groups do so: one
// thread makes all calls, on one queue, and ranks synchronize before each.
//
// The group differs from process_group.h in its sums: NCCL chooses their order by topology and size
// and rounds bf16 and f16 where a partial sum moves to another GPU. AllReduce gives the same bits
// on every rank, and in every run on the same machine, but not the bits of ReduceScatter.
//
// `memory` must outlive the group and the groups that are split from it. Throws as NcclComm.
// REQUIRES: calling threads have called kernels of the device before.
std::unique_ptr<ProcessGroup> MakeNcclGroup(std::unique_ptr<ProcessGroup> host,
                                            MemorySource& memory, const NcclDevice& device);

// The machine as NCCL tells it from others: by NCCL_HOSTID, or else by the running kernel, which is
// the same in all containers of a host. "" if it is unknown.
std::string NcclMachine();

// Returns why the ranks of `host` cannot use NCCL; "" on all of them if they can. `machine` is this
// rank's NcclMachine, `gpu` names its GPU there, and `missing` is its result of nccl::Load. A
// collective call.
std::string WhyNoNccl(ProcessGroup& host, const std::string& machine, const std::string& gpu,
                      const std::string& missing);

}  // namespace dsat::engine
