// Collectives and messages between GPUs by NCCL: one GPU per rank.
#ifndef DSAT_ENGINE_BACKEND_CUDA_NCCL_GROUP_H_
#define DSAT_ENGINE_BACKEND_CUDA_NCCL_GROUP_H_

#include <memory>
#include <string>

#include "engine/backend/cuda/nccl_comm.h"
#include "engine/comm/process_group.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {

// The ranks of `host`, a group over host memory, each with a GPU of its own; buffers are `memory`,
// messages may be that or the host's. A collective call.
//
// Every call first meets on `host`, all ranks for a collective, the two for a message, and so names
// ranks that do something else, end, leave or do not come as that group does; then NCCL moves the
// bytes; what may go wrong there is NcclComm::Run's. A group is broken after any error but
// kResourceExhausted.
//
// A Send ends when the peer has received. An Exchange is one group call on both sides, as NCCL
// wants it of what is to cross (its documentation, "Point-to-point communication"); two ranks that
// Send to each other are told so. Messages of host memory are left to `host`.
//
// NCCL wants communicators used one after another, in the same order on all ranks ("Using multiple
// NCCL communicators concurrently"). So do ranks that are in several groups: one thread issues, and
// every call ends before the next. Plans of pipelines overlap nothing.
//
// What differs from process_group.h: NCCL chooses the order of a sum by topology and size, and
// rounds bf16 and f16 where a partial sum changes GPUs. Every rank gets the same bits from
// AllReduce, the same from run to run on the same machine, but not those of ReduceScatter.
//
// `memory` must outlive the group and those split off. Calling threads have called kernels of the
// device before. Throws as NcclComm.
std::unique_ptr<ProcessGroup> MakeNcclGroup(std::unique_ptr<ProcessGroup> host,
                                            MemorySource& memory, const NcclDevice& device);

// Why the ranks of `host` cannot use NCCL; "" on all of them if they can. `machine` is the same
// where ranks run on the same kernel, `gpu` names this rank's there, `missing` is what nccl::Load
// has said here. A collective call.
std::string WhyNoNccl(ProcessGroup& host, const std::string& machine, const std::string& gpu,
                      const std::string& missing);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_NCCL_GROUP_H_
