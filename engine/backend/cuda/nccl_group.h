// Collectives between GPUs by NCCL: one GPU per rank.
#ifndef DSAT_ENGINE_BACKEND_CUDA_NCCL_GROUP_H_
#define DSAT_ENGINE_BACKEND_CUDA_NCCL_GROUP_H_

#include <memory>
#include <string>

#include "engine/backend/cuda/nccl_comm.h"
#include "engine/comm/process_group.h"
#include "engine/memory/memory_source.h"

namespace dsat::engine {

// The ranks of `host`, a group over host memory, each with a GPU of its own; buffers are `memory`,
// messages may be that or the host's. A collective call.
//
// Every call first meets on `host`, and so names ranks that do something else, end, leave or do not
// come as that group does; then NCCL moves the rows; what may go wrong there is NcclComm::Run's. A
// group is broken after any error but kResourceExhausted.
//
// Messages go through host memory (staged_group.h), not NCCL. Send returns before its peer
// receives, and a pipeline's schedule counts on that: a stage sends an output, then receives a
// gradient, while the next one sends that gradient, then receives the output. A send of NCCL's ends
// when the peer has received, and what is to cross must be in one group call on both sides (its
// documentation, "Point-to-point communication"), so that these two would wait for each other for
// ever. A communicator for each direction, with a thread that waits in it, would not: but NCCL asks
// that communicators are used one after another, in the same order on all ranks ("Using multiple
// NCCL communicators concurrently"), and that thread's messages would be beside everything else,
// from a block of device memory that no plan counts. What can be done is a schedule that sends and
// receives in one instruction where messages cross.
//
// What differs from process_group.h: NCCL chooses the order of a sum by topology and size, and
// rounds bf16 and f16 where a partial sum changes GPUs. Every rank gets the same bits from
// AllReduce, the same from run to run on the same machine, but not those of ReduceScatter.
//
// `memory` must outlive the group and those split off. Calling threads have called kernels of the
// device before. Throws as NcclComm.
std::unique_ptr<ProcessGroup> MakeNcclGroup(std::unique_ptr<ProcessGroup> host,
                                            MemorySource& memory, const NcclDevice& device);

// Why the ranks of `host` cannot use NCCL; "" on all of them if they can. `gpu` names this
// rank's, `missing` is what nccl::Load has said here. A collective call.
std::string WhyNoNccl(ProcessGroup& host, const std::string& gpu, const std::string& missing);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_NCCL_GROUP_H_
