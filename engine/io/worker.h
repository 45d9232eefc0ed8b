// Threads that move their part of the requests, each one block at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "engine/io/async_file.h"

namespace dsat::engine {

// A contiguous part of a request.
struct Piece {
  int64_t ticket = 0;
  bool is_write = false;
  int64_t offset = 0;
  char* data = nullptr;
  int64_t bytes = 0;

  // Leaves out the first `count` bytes.
  void Skip(int64_t count) {
    offset += count;
    data += count;
    bytes -= count;
  }
};

class Worker {
 public:
  // Called by several threads at once. `Move` reads or writes a block and returns the bytes that it
  // has moved, perhaps fewer than the block has, or -errno.
  using Move = std::function<int64_t(const Piece& block)>;
  // Called by a thread once for each block that has ended, with what was left of the block (all of
  // it, except after short transfers), and 0 or errno.
  using OnEnd = std::function<void(const Piece& block, int error)>;

  // Starts options.queue_depth threads. Throws kUnavailable if they cannot be had.
  Worker(const AioOptions& options, Move move, OnEnd on_end);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();  // Waits for all pieces.

  void Add(const Piece& piece);

 private:
  void Run(const std::stop_token& stop);
  // These three need the mutex.
  bool MayTake() const;
  Piece TakeBlock();
  void Wake();
  int MoveAll(Piece& block) const;

  const AioOptions options_;
  const Move move_;
  const OnEnd on_end_;

  std::mutex mutex_;  // Guards the next three.
  std::deque<Piece> pieces_;
  int num_taken_ = 0;  // Since the last time that none was in flight.
  int num_in_flight_ = 0;
  std::condition_variable_any work_;
  std::vector<std::jthread> threads_;  // Last: they use all of the others.
};

}  // namespace dsat::engine
