// A communicator of NCCL whose calls end if a peer does. NCCL itself waits for a dead peer forever,
// and a GPU that waits can do nothing else.
#ifndef DSAT_ENGINE_BACKEND_CUDA_NCCL_COMM_H_
#define DSAT_ENGINE_BACKEND_CUDA_NCCL_COMM_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "engine/backend/cuda/nccl.h"
#include "engine/backend/kernels.h"
#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"

namespace dsat::engine {

// What a communicator uses: NCCL, kernels of the device, and the queue of all NCCL's work. NCCL
// launches from a thread of its own, where a handle of the calling thread's stream would name the
// stream of another thread.
struct NcclDevice {
  nccl::Api api;
  std::shared_ptr<Kernels> kernels;
  std::shared_ptr<Queue> queue = kernels->stream().MakeQueue();
};
// The stream of the kernels, which it keeps.
inline std::shared_ptr<Stream> StreamOf(const NcclDevice& device) {
  return {device.kernels, &device.kernels->stream()};
}

// Not thread-safe.
class NcclComm {
 public:
  // Connects the ranks of `host`, over which they exchange NCCL's id. A collective call. `host`
  // must outlive this. Throws as Run.
  NcclComm(const NcclDevice& device, ProcessGroup& host);
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  ~NcclComm();

  // `enqueue` enqueues work of this communicator with `peer`, or ProcessGroup::kAllPeers, on the
  // queue and returns NCCL's result. The work begins after what the calling thread has asked the
  // device for, and what the thread asks for next begins after it. Run returns when the GPU has
  // done the work, so that an error ends the call. Throws kUnavailable if NCCL reports an error,
  // the peer has ended or left, or an earlier call has failed; kDeadlineExceeded after the host
  // group's time-out. The communicator is aborted then, so that the GPU is free again. `call` is
  // for messages.
  void Run(const std::string& call, int peer, const std::function<int(nccl::Comm)>& enqueue);
  // Aborts the communicator, so that every further call throws.
  void Break() { Abort(); }

 private:
  using Clock = std::chrono::steady_clock;

  void Check(int result, const std::string& call) const;
  bool IsSettled(const std::string& call) const;
  void Await(const std::string& call, int peer, const std::function<bool()>& is_done) const;
  bool IsDoneSoon(const std::function<bool()>& is_done) const;
  void Abort();

  const NcclDevice& device_;
  ProcessGroup& host_;
  nccl::Comm comm_ = nullptr;  // nullptr after an error.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_NCCL_COMM_H_
