// A queue of reads and writes of one block each, several of them in flight, in two implementations.
#ifndef DSAT_ENGINE_IO_BLOCK_QUEUE_H_
#define DSAT_ENGINE_IO_BLOCK_QUEUE_H_

#include <cstdint>
#include <memory>

namespace dsat::engine {

// One read or write.
struct Block {
  bool is_write = false;
  int fd = -1;
  int64_t offset = 0;
  char* data = nullptr;
  int64_t bytes = 0;
};

// Not thread-safe: one worker owns it.
class BlockQueue {
 public:
  struct Completion {
    int slot = 0;
    int64_t result = 0;  // Bytes moved, perhaps fewer than asked for; or -errno.
  };

  virtual ~BlockQueue() = default;  // REQUIRES: nothing is in flight.

  // Prepares a block under the caller's number `slot`. REQUIRES: fewer than `depth` are in flight.
  virtual void Push(int slot, const Block& block) = 0;
  // Starts the blocks that were prepared.
  virtual void Submit() = 0;
  // Waits until a block that was started has ended. REQUIRES: there is one.
  virtual Completion Wait() = 0;
};

// nullptr if the kernel does not give this process an io_uring, or one too old for reads and writes
// by offset (before Linux 5.6).
std::unique_ptr<BlockQueue> MakeUringQueue(int depth);
// `depth` threads, each in one pread or pwrite at a time. Throws kUnavailable if they cannot
// be had.
std::unique_ptr<BlockQueue> MakeThreadQueue(int depth);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_IO_BLOCK_QUEUE_H_
