// A thread that divides its part of the requests into blocks and keeps several of them in flight.
#ifndef DSAT_ENGINE_IO_WORKER_H_
#define DSAT_ENGINE_IO_WORKER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/io/async_file.h"
#include "engine/io/block_queue.h"

namespace dsat::engine {

// A contiguous part of a request.
struct Piece {
  int64_t ticket = 0;
  bool is_write = false;
  int64_t offset = 0;
  char* data = nullptr;
  int64_t bytes = 0;
};

class Worker {
 public:
  // The worker's thread calls it once for each block that has ended, with what was left of the
  // block (all of it, except after short transfers), and 0 or errno.
  using OnEnd = std::function<void(const Piece& block, int error)>;

  // File descriptors with and without the page cache (-1: always with it); both are borrowed.
  Worker(int buffered_fd, int direct_fd, std::unique_ptr<BlockQueue> queue,
         const AioOptions& options, OnEnd on_end);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();  // Waits for all pieces.

  void Add(const Piece& piece);

 private:
  void Run();
  // Waits for pieces while none is in flight; false at the end.
  bool HasWork();
  void Fill();
  bool TakeBlock(Piece& block);
  void Push(int slot);
  void OnCompletion(const BlockQueue::Completion& completion);

  const int buffered_fd_;
  const int direct_fd_;
  const AioOptions options_;
  const OnEnd on_end_;
  const std::unique_ptr<BlockQueue> queue_;
  std::vector<Piece> in_flight_;  // By slot: what is left of a block.
  std::vector<int> free_slots_;

  std::mutex mutex_;  // Guards the next two.
  std::deque<Piece> pieces_;
  bool stop_ = false;
  std::condition_variable work_;
  std::thread thread_;  // Last: it uses all of the others.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_IO_WORKER_H_
