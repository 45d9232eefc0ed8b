// Threads that cut pieces of requests into blocks and move them.
#include "engine/io/worker.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace dsat::engine {

Worker::Worker(const AioOptions& options, Move move, OnEnd on_end)
    : options_(options), move_(std::move(move)), on_end_(std::move(on_end)) {
  try {
    for (int i = 0; i < options.queue_depth; ++i)
      threads_.emplace_back([this](const std::stop_token& stop) { Run(stop); });
  } catch (const std::system_error& error) {
    Throw(ErrorCode::kUnavailable, "{} threads for reads and writes: {}", options.queue_depth,
          error.what());
  }
}

Worker::~Worker() {
  for (std::jthread& thread : threads_)  // All are told before one is joined.
    thread.request_stop();
}

void Worker::Add(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  pieces_.push_back(piece);
  Wake();
}

// Each block that may be taken has a thread of its own.
void Worker::Wake() {
  if (!options_.single_submit) return work_.notify_all();
  for (int i = num_in_flight_; i < options_.queue_depth; ++i)
    work_.notify_one();
}

bool Worker::MayTake() const {
  return !pieces_.empty() && (options_.overlap_events || num_taken_ < options_.queue_depth);
}

Piece Worker::TakeBlock() {
  Piece& piece = pieces_.front();
  Piece block = piece;
  block.bytes = std::min(piece.bytes, options_.block_size);
  piece.Skip(block.bytes);
  if (piece.bytes == 0) pieces_.pop_front();
  ++num_taken_;
  ++num_in_flight_;
  return block;
}

// A thread that ends while blocks may not be taken leaves them to the one whose block is in flight.
void Worker::Run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (work_.wait(lock, stop, [this] { return MayTake(); })) {
    Piece block = TakeBlock();
    lock.unlock();
    const int error = MoveAll(block);
    on_end_(block, error);
    lock.lock();
    if (--num_in_flight_ > 0) continue;
    num_taken_ = 0;
    Wake();
  }
}

int Worker::MoveAll(Piece& block) const {
  while (true) {
    const int64_t result = move_(block);
    if (result == -EINTR || result == -EAGAIN) continue;
    if (result < 0) return static_cast<int>(-result);
    // All of the file's space was taken at its creation: no read meets its end.
    if (result == 0) return EIO;
    if (result == block.bytes) return 0;
    block.Skip(result);
  }
}

}  // namespace dsat::engine
