// A communicator of NCCL whose calls end if a peer does. NCCL itself waits for a dead peer forever,
// and a GPU that waits can do nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "engine/backend/cuda/nccl.h"
#include "engine/backend/kernels.h"
#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"

namespace dsat::engine {

// The parts that a communicator uses: NCCL, kernels of the device, and the queue of all NCCL's
// work. NCCL launches from a thread of its own, where a handle of the calling thread's stream would
// name the stream of another thread.
struct NcclDevice {
  nccl::Api api;
  std::shared_ptr<Kernels> kernels;
  std::shared_ptr<Queue> queue = kernels->stream().MakeQueue();
};
// The stream of the kernels, which it keeps.
inline std::shared_ptr<Stream> StreamOf(const NcclDevice& device) {
  return {device.kernels, &device.kernels->stream()};
}

// One thread at a time makes calls; threads that wait for the device watch over their work
// (watches.h).
class NcclComm {
 public:
  // Connects the ranks of `host`, over which they exchange NCCL's id. A collective call. `host`
  // must outlive this. Throws as Run.
  NcclComm(const NcclDevice& device, ProcessGroup& host);
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  // Waits for the work that has been enqueued, some seconds at most.
  ~NcclComm();

  // `enqueue` enqueues work of this communicator with `peer`, or ProcessGroup::kAllPeers, on the
  // queue and returns NCCL's result. The work begins after what the calling thread has asked the
  // device for, and what the thread asks for next begins after it. Run returns when NCCL has
  // launched the work, except on a CPU, where the work is done then. `call` is for messages.
  //
  // If NCCL reports an error (kUnavailable), the peer has ended or left (kUnavailable), or work is
  // not done the host group's time-out after the GPU has come to it (kDeadlineExceeded), the
  // communicator is aborted, so that the GPU continues. Run throws that error or, if it happens
  // later, each thread that waits for the device by its stream; the work's results are garbage.
  // Then every further call throws kUnavailable.
  void Run(const std::string& call, int peer, const std::function<int(nccl::Comm)>& enqueue);
  // Runs a part of a call that uses `host`, while nobody else does. Aborts the communicator if it
  // throws.
  void Guard(const std::function<void()>& part);
  // The same for a part that may throw without aborting the communicator.
  std::unique_lock<std::mutex> Hold() { return std::unique_lock(mutex_); }

 private:
  using Clock = std::chrono::steady_clock;
  // Work that may not be done: the points of the queue before it and after it.
  struct Work {
    std::string call;
    int peer = 0;
    StreamEvent begin, end;
    std::optional<Clock::time_point>
        begun_at;  // When it was first seen that the GPU had come to it.
  };

  void Check(int result, const std::string& call) const;
  bool IsSettled(const std::string& call) const;
  void CheckWork();
  void DropDoneWork();
  void Await(const std::string& call, int peer, const std::function<bool()>& is_done) const;
  bool IsDoneSoon(const std::function<bool()>& is_done) const;
  void Watch();
  void Abort(const Error& error);

  const NcclDevice& device_;
  ProcessGroup& host_;
  std::mutex mutex_;           // Guards what follows, and the use of host_.
  nccl::Comm comm_ = nullptr;  // nullptr after an error.
  std::deque<Work> work_;      // In the order of the queue.
  Clock::time_point next_look_;
  // Never changed, and read by all threads, once has_failed_ is true.
  std::optional<Error> failure_;
  std::atomic<bool> has_failed_ = false;
};

}  // namespace dsat::engine
