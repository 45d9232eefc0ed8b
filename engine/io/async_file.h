// A scratch file with asynchronous reads and writes. The nvme tier is built on it, and
// `dsat aio-bench` measures it.
//
// A request is divided into blocks, which threads move by pread and pwrite. The options are those
// of DeepSpeed's `aio` block (docs/io.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace dsat::engine {

// DeepSpeed's `aio` block.
struct AioOptions {
  // Bytes of one read or write; a multiple of 4096.
  int64_t block_size = 1 << 20;
  // The largest number of blocks that a worker has in flight.
  int queue_depth = 8;
  // The number of workers that share the blocks of one request, each with threads of its own.
  int intra_op_parallelism = 1;
  // Wake the threads of a request one by one, instead of all of them at once.
  bool single_submit = false;
  // Start a block as soon as another one is done, instead of when all in flight are.
  bool overlap_events = true;
  bool operator==(const AioOptions&) const = default;
};

// The alignment of memory addresses, file offsets and sizes that direct I/O requires.
constexpr int64_t kAioAlignment = 4096;
constexpr int64_t RoundUpForAio(int64_t bytes) {
  return (bytes + kAioAlignment - 1) / kAioAlignment * kAioAlignment;
}
// The first aligned address at or after `data`. A pool allocates RoundUpForAio(bytes) +
// kAioAlignment bytes a buffer and hands this to ReadAsync and WriteAsync.
void* AlignForAio(void* data);

// The requests so far. A request is one block; retries after a short transfer do not count.
struct AioTraffic {
  int64_t num_requests = 0;
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  AioTraffic operator+(const AioTraffic& more) const {
    return {num_requests + more.num_requests, read_bytes + more.read_bytes,
            written_bytes + more.written_bytes};
  }
  AioTraffic operator-(const AioTraffic& before) const {
    return {num_requests - before.num_requests, read_bytes - before.read_bytes,
            written_bytes - before.written_bytes};
  }
  bool operator==(const AioTraffic&) const = default;
};

// The time of a request: from its issue, or from the end of the request before it if that was
// later, to its end.
struct AioTimes {
  std::chrono::steady_clock::time_point begin = {};
  std::chrono::steady_clock::time_point end = {};
};

// Thread-safe: any thread may issue and wait.
class AsyncFile {
 public:
  // Creates a file of `size_bytes` in `folder` and allocates all of its space. The file has no name
  // when this returns, so that nothing is left behind, not even after kill -9.
  // Throws
  //   kInvalidArgument    if an option is out of its range, naming it;
  //   kNotFound, kPermissionDenied  if the folder does not exist, or is read-only;
  //   kResourceExhausted  if the file system has too little space, naming what it has;
  //   kUnavailable        on other errors, and if there are no threads.
  static std::unique_ptr<AsyncFile> Create(const std::string& folder, int64_t size_bytes,
                                           const AioOptions& options);
  // For predictions: the same checks and the same traffic, without a file or threads.
  static std::unique_ptr<AsyncFile> Counting(int64_t size_bytes, const AioOptions& options);

  virtual ~AsyncFile() = default;  // Waits for requests in flight and ignores their errors.

  // Starts to move `bytes` between memory and [offset, offset + bytes) of the file and returns a
  // ticket. Requests whose ranges overlap are unordered: wait for the first before the second.
  // Direct if direct(), and address, offset and size are multiples of kAioAlignment; else through
  // the page cache. What was never written reads as zero.
  // REQUIRES: offset + bytes <= RoundUpForAio(size_bytes); the memory lives until Wait returns.
  virtual int64_t ReadAsync(int64_t offset, void* data, int64_t bytes) = 0;
  virtual int64_t WriteAsync(int64_t offset, const void* data, int64_t bytes) = 0;
  // Returns when the request is done, once per ticket. A done write can be read back; it need not
  // be on the medium. Throws kUnavailable "scratch file in <folder>: writing 1048576 bytes at 4096:
  // <errno>" with the first error of the request, after all of its blocks have ended;
  // kResourceExhausted if that is a full disk (a file system that does not keep what it promised).
  virtual AioTimes Wait(int64_t ticket) = 0;

  virtual AioTraffic traffic() const = 0;
  // Whether aligned requests bypass the page cache, because the file system supports O_DIRECT.
  virtual bool direct() const = 0;
};

}  // namespace dsat::engine
