// A thread that cuts its part of the requests into blocks and keeps some of them in flight.
#include "engine/io/worker.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace dsat::engine {
namespace {

bool IsAligned(const Piece& piece) {
  return (reinterpret_cast<uintptr_t>(piece.data) | static_cast<uint64_t>(piece.offset) |
          static_cast<uint64_t>(piece.bytes)) %
             kAioAlignment ==
         0;
}

void Advance(Piece& piece, int64_t bytes) {
  piece.offset += bytes;
  piece.data += bytes;
  piece.bytes -= bytes;
}

}  // namespace

Worker::Worker(int buffered_fd, int direct_fd, std::unique_ptr<BlockQueue> queue,
               const AioOptions& options, OnEnd on_end)
    : buffered_fd_(buffered_fd),
      direct_fd_(direct_fd),
      options_(options),
      on_end_(std::move(on_end)),
      queue_(std::move(queue)),
      in_flight_(static_cast<size_t>(options.queue_depth)) {
  for (int slot = options.queue_depth - 1; slot >= 0; --slot)
    free_slots_.push_back(slot);
  thread_ = std::thread([this] { Run(); });
}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void Worker::Add(const Piece& piece) {
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece);
  }
  work_.notify_one();
}

void Worker::Run() {
  while (HasWork()) {
    const bool idle = free_slots_.size() == in_flight_.size();
    if (options_.overlap_events || idle) Fill();
    OnCompletion(queue_->Wait());
  }
}

bool Worker::HasWork() {
  if (free_slots_.size() < in_flight_.size()) return true;
  std::unique_lock lock(mutex_);
  work_.wait(lock, [this] { return stop_ || !pieces_.empty(); });
  return !pieces_.empty();
}

void Worker::Fill() {
  Piece block;
  while (!free_slots_.empty() && TakeBlock(block)) {
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    in_flight_[static_cast<size_t>(slot)] = block;
    Push(slot);
    if (options_.single_submit) queue_->Submit();
  }
  queue_->Submit();
}

bool Worker::TakeBlock(Piece& block) {
  const std::lock_guard lock(mutex_);
  if (pieces_.empty()) return false;
  Piece& piece = pieces_.front();
  block = piece;
  block.bytes = std::min(piece.bytes, options_.block_size);
  Advance(piece, block.bytes);
  if (piece.bytes == 0) pieces_.pop_front();
  return true;
}

void Worker::Push(int slot) {
  const Piece& piece = in_flight_[static_cast<size_t>(slot)];
  const bool direct = direct_fd_ >= 0 && IsAligned(piece);
  queue_->Push(slot, {piece.is_write, direct ? direct_fd_ : buffered_fd_, piece.offset, piece.data,
                      piece.bytes});
}

void Worker::OnCompletion(const BlockQueue::Completion& completion) {
  Piece& piece = in_flight_[static_cast<size_t>(completion.slot)];
  const int64_t result = completion.result;
  const bool again = result == -EINTR || result == -EAGAIN;
  if (again || (result > 0 && result < piece.bytes)) {
    if (!again) Advance(piece, result);
    Push(completion.slot);
    queue_->Submit();
    return;
  }
  free_slots_.push_back(completion.slot);
  // All of the file's space was taken at its creation: no read meets its end.
  on_end_(piece, result < 0 ? static_cast<int>(-result) : result == 0 ? EIO : 0);
}

}  // namespace dsat::engine
