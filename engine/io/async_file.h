// A scratch file whose reads and writes run beside the caller: the bottom of the nvme tier, and
// what `dsat aio-bench` measures.
//
// A request is cut into blocks. A worker keeps a queue of blocks in flight, on io_uring where the
// kernel lets us have one, else on threads that call pread and pwrite: containers often forbid
// io_uring, so the choice is made at run time. The options are those of DeepSpeed's `aio` block
// (docs/io.md says what each one does to both engines).
#ifndef DSAT_ENGINE_IO_ASYNC_FILE_H_
#define DSAT_ENGINE_IO_ASYNC_FILE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace dsat::engine {

// DeepSpeed's `aio` block.
struct AioOptions {
  // Bytes of one read or write; a multiple of 4096.
  int64_t block_size = 1 << 20;
  // Blocks that a worker has in flight at most.
  int queue_depth = 8;
  // Workers among which the blocks of one request are dealt, each with a queue of its own.
  int intra_op_parallelism = 1;
  // Hand blocks over one by one, each in a call of its own, instead of as many as fit the queue.
  bool single_submit = false;
  // Refill the queue as soon as one block is done, instead of when all of them are.
  bool overlap_events = true;
  bool operator==(const AioOptions&) const = default;
};

enum class AioEngine { kUring, kThreads };
// "io_uring", "threads".
const char* ToString(AioEngine engine);

// io_uring where this process may use it (probed at every call), else threads.
AioEngine BestAioEngine();

// What direct I/O wants of memory addresses, file offsets and sizes.
constexpr int64_t kAioAlignment = 4096;
constexpr int64_t RoundUpForAio(int64_t bytes) {
  return (bytes + kAioAlignment - 1) / kAioAlignment * kAioAlignment;
}
// The first aligned address at or after `data`. A pool allocates RoundUpForAio(bytes) +
// kAioAlignment bytes a buffer and hands this to ReadAsync and WriteAsync.
void* AlignForAio(void* data);

// Asked for so far. A request is one block; repeats after a short transfer are not counted.
struct AioTraffic {
  int64_t num_requests = 0;
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  bool operator==(const AioTraffic&) const = default;
};

// When a request was worked on: from its issue, or from the end of the one before it if that came
// later, to its end.
struct AioTimes {
  std::chrono::steady_clock::time_point begin = {};
  std::chrono::steady_clock::time_point end = {};
};

// Thread-safe: any thread may issue and wait.
class AsyncFile {
 public:
  // A file of `size_bytes` in `folder`, all of its space taken from the file system before this
  // returns. Its name is gone by then, too: nothing is left behind, not even after kill -9.
  // Throws
  //   kInvalidArgument    if an option is out of its range, naming it;
  //   kNotFound, kPermissionDenied  if the folder does not exist, or is read-only;
  //   kResourceExhausted  if the file system has no room, naming what it has;
  //   kUnavailable        on other errors; also if `engine` cannot be had here.
  static std::unique_ptr<AsyncFile> Create(const std::string& folder, int64_t size_bytes,
                                           const AioOptions& options,
                                           AioEngine engine = BestAioEngine());
  // No file, no threads: the same checks and the same traffic, nothing moves. For predictions.
  static std::unique_ptr<AsyncFile> Counting(int64_t size_bytes, const AioOptions& options);

  virtual ~AsyncFile() = default;  // Waits for what is in flight; its errors are lost.

  // Starts to move `bytes` between memory and [offset, offset + bytes) of the file and returns a
  // ticket. Requests whose ranges overlap are unordered: wait for the first before the second.
  // Direct if direct(), and address, offset and size are multiples of kAioAlignment; else through
  // the page cache. What was never written reads as zero.
  // REQUIRES: offset + bytes <= RoundUpForAio(size_bytes); the memory lives until Wait returns.
  virtual int64_t ReadAsync(int64_t offset, void* data, int64_t bytes) = 0;
  virtual int64_t WriteAsync(int64_t offset, const void* data, int64_t bytes) = 0;
  // Returns when the request is done, once per ticket. A done write can be read back; it need not
  // be on the medium. Throws kUnavailable "<path>: writing 1048576 bytes at 4096: <errno>" with the
  // first error of the request, after all of its blocks have ended; kResourceExhausted if that is a
  // full disk (a file system that does not keep what it promised).
  virtual AioTimes Wait(int64_t ticket) = 0;

  virtual AioTraffic traffic() const = 0;
  virtual AioEngine engine() const = 0;
  // Whether aligned requests pass the page cache by: the file system has O_DIRECT.
  virtual bool direct() const = 0;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_IO_ASYNC_FILE_H_
