// A scratch file whose reads and writes run in parallel with the caller: creation, tickets and
// their ends.
#include "engine/io/async_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/unique_fd.h"
#include "engine/io/worker.h"

namespace dsat::engine {
namespace {

using Clock = std::chrono::steady_clock;

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void CheckRange(const char* key, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return;
  Throw(ErrorCode::kInvalidArgument, "/aio/{}: {}; expected 1 to {}", key, value, most);
}

void Check(const AioOptions& options) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  if (options.block_size < kAioAlignment || options.block_size > kMostBytes ||
      options.block_size % kAioAlignment != 0) {
    Throw(ErrorCode::kInvalidArgument, "/aio/block_size: {}; expected a multiple of {} up to {}",
          options.block_size, kAioAlignment, kMostBytes);
  }
  CheckRange("queue_depth", options.queue_depth, 256);
  CheckRange("intra_op_parallelism", options.intra_op_parallelism, 64);
}

// The part of every AsyncFile that predictions share: what may be asked for, and how much was.
class Accounts {
 public:
  Accounts(int64_t size_bytes, const AioOptions& options)
      : end_(RoundUpForAio(size_bytes)), block_size_(options.block_size) {
    DSAT_CHECK(size_bytes >= 0);
    Check(options);
  }

  // Counts a request; the number of its blocks.
  int64_t Count(bool is_write, int64_t offset, int64_t bytes) {
    DSAT_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= end_, "[{}, +{}) of {}", offset,
               bytes, end_);
    (is_write ? traffic_.written_bytes : traffic_.read_bytes) += bytes;
    const int64_t num_blocks = CeilDiv(bytes, block_size_);
    traffic_.num_requests += num_blocks;
    return num_blocks;
  }
  const AioTraffic& traffic() const { return traffic_; }

 private:
  int64_t end_;
  int64_t block_size_;
  AioTraffic traffic_;
};

class CountingFile final : public AsyncFile {
 public:
  CountingFile(int64_t size_bytes, const AioOptions& options) : accounts_(size_bytes, options) {}

  int64_t ReadAsync(int64_t offset, void*, int64_t bytes) override {
    accounts_.Count(false, offset, bytes);
    return 0;
  }
  int64_t WriteAsync(int64_t offset, const void*, int64_t bytes) override {
    accounts_.Count(true, offset, bytes);
    return 0;
  }
  AioTimes Wait(int64_t) override { return {}; }
  AioTraffic traffic() const override { return accounts_.traffic(); }
  bool direct() const override { return false; }

 private:
  Accounts accounts_;
};

bool IsAligned(const Piece& piece) {
  return (reinterpret_cast<uintptr_t>(piece.data) | static_cast<uint64_t>(piece.offset) |
          static_cast<uint64_t>(piece.bytes)) %
             kAioAlignment ==
         0;
}

// A direct descriptor for `path` if its file system can do that, else none. Some take the flag and
// refuse the first write.
UniqueFd OpenDirect(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!fd) return fd;
  alignas(kAioAlignment) static constexpr std::array<char, kAioAlignment> kZeros{};
  if (pwrite(fd.get(), kZeros.data(), kZeros.size(), 0) != kAioAlignment) return UniqueFd();
  return fd;
}

class ScratchFile final : public AsyncFile {
 public:
  ScratchFile(const std::string& folder, int64_t size_bytes, const AioOptions& options)
      : options_(options), name_("scratch file in " + folder), accounts_(size_bytes, options) {
    Open(folder);
    TakeSpace(RoundUpForAio(size_bytes));
    for (int i = 0; i < options.intra_op_parallelism; ++i) {
      workers_.push_back(std::make_unique<Worker>(
          options, [this](const Piece& block) { return Move(block); },
          [this](const Piece& block, int error) { OnBlockEnd(block, error); }));
    }
  }

  int64_t ReadAsync(int64_t offset, void* data, int64_t bytes) override {
    return Start({.offset = offset, .data = static_cast<char*>(data), .bytes = bytes});
  }
  int64_t WriteAsync(int64_t offset, const void* data, int64_t bytes) override {
    // Only read from: a piece has one pointer for both directions.
    char* source = const_cast<char*>(static_cast<const char*>(data));
    return Start({.is_write = true, .offset = offset, .data = source, .bytes = bytes});
  }

  AioTimes Wait(int64_t ticket) override {
    std::unique_lock lock(mutex_);
    const auto found = requests_.find(ticket);
    DSAT_CHECK(found != requests_.end(), "ticket {} of {}", ticket, name_);
    request_ended_.wait(lock, [&] { return found->second.blocks_left == 0; });
    const Request request = found->second;
    requests_.erase(found);
    if (request.error == 0) return request.times;
    ThrowErrno(
        fmt::format("{}: {} {} bytes at {}", name_, request.failed.is_write ? "writing" : "reading",
                    request.failed.bytes, request.failed.offset),
        request.error);
  }

  AioTraffic traffic() const override {
    const std::lock_guard lock(mutex_);
    return accounts_.traffic();
  }
  bool direct() const override { return static_cast<bool>(direct_fd_); }

 private:
  struct Request {
    int64_t blocks_left = 0;
    AioTimes times;
    Piece failed;  // The first block that failed, and why.
    int error = 0;
  };

  // A file without a name leaves nothing behind, however this process ends. Where the file system
  // has none such, the name is gone as soon as the file is open.
  void Open(const std::string& folder) {
    constexpr mode_t kOwnerOnly = 0600;
    buffered_fd_ = UniqueFd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly));
    if (buffered_fd_) {
      direct_fd_ = OpenDirect(fmt::format("/proc/self/fd/{}", buffered_fd_.get()));
      return;
    }
    std::string path = folder + "/dsat-scratch-XXXXXX";
    buffered_fd_ = UniqueFd(mkostemp(path.data(), O_CLOEXEC));
    if (!buffered_fd_) ThrowErrno(name_, errno);
    direct_fd_ = OpenDirect(path);
    if (unlink(path.c_str()) != 0) ThrowErrno(path, errno);
  }

  void TakeSpace(int64_t bytes) {
    struct statvfs info {};
    if (fstatvfs(buffered_fd_.get(), &info) != 0) ThrowErrno(name_, errno);
    const auto free_bytes = static_cast<int64_t>(info.f_bavail * info.f_frsize);
    // Asked first: an attempt would fill the disk for others before it failed.
    int error = bytes > free_bytes ? ENOSPC : 0;
    if (error == 0 && bytes > 0) {
      do {
        error = posix_fallocate(buffered_fd_.get(), 0, bytes);
      } while (error == EINTR);
    }
    if (error != 0) {
      ThrowErrno(
          fmt::format("{}: {} wanted, {} free", name_, HumanBytes(bytes), HumanBytes(free_bytes)),
          error);
    }
  }

  // Deals whole blocks in contiguous parts, so that every worker reads and writes in sequence.
  int64_t Start(Piece request) {
    const std::lock_guard lock(mutex_);
    const int64_t num_blocks = accounts_.Count(request.is_write, request.offset, request.bytes);
    request.ticket = ++last_ticket_;
    const Clock::time_point now = Clock::now();
    requests_[request.ticket] = {.blocks_left = num_blocks, .times = {now, now}, .failed = {}};
    const auto num_workers = static_cast<int64_t>(workers_.size());
    const int64_t part_bytes = CeilDiv(num_blocks, num_workers) * options_.block_size;
    while (request.bytes > 0) {
      Piece part = request;
      part.bytes = std::min(request.bytes, part_bytes);
      // Goes on where the last request ended, so that small ones find all workers.
      workers_[next_worker_++ % workers_.size()]->Add(part);
      request.Skip(part.bytes);
    }
    return request.ticket;
  }

  int64_t Move(const Piece& block) const {
    const int fd = direct_fd_ && IsAligned(block) ? direct_fd_.get() : buffered_fd_.get();
    const auto bytes = static_cast<size_t>(block.bytes);
    const int64_t moved = block.is_write ? pwrite(fd, block.data, bytes, block.offset)
                                         : pread(fd, block.data, bytes, block.offset);
    return moved < 0 ? -errno : moved;
  }

  void OnBlockEnd(const Piece& block, int error) {
    const std::lock_guard lock(mutex_);
    Request& request = requests_.at(block.ticket);
    if (error != 0 && request.error == 0) {
      request.failed = block;
      request.error = error;
    }
    if (--request.blocks_left > 0) return;
    request.times = {std::max(request.times.begin, last_end_), Clock::now()};
    last_end_ = request.times.end;
    request_ended_.notify_all();
  }

  const AioOptions options_;
  const std::string name_;  // For messages: the file has none.
  UniqueFd buffered_fd_;
  UniqueFd direct_fd_;  // Empty if the file system has no O_DIRECT.

  mutable std::mutex mutex_;  // Over the next five.
  Accounts accounts_;
  std::map<int64_t, Request> requests_;  // By ticket.
  int64_t last_ticket_ = 0;
  Clock::time_point last_end_;  // When a request has ended last.
  size_t next_worker_ = 0;
  std::condition_variable request_ended_;
  std::vector<std::unique_ptr<Worker>> workers_;  // Last: they use all of the others.
};

}  // namespace

void* AlignForAio(void* data) {
  return reinterpret_cast<void*>(RoundUpForAio(reinterpret_cast<intptr_t>(data)));
}

std::unique_ptr<AsyncFile> AsyncFile::Create(const std::string& folder, int64_t size_bytes,
                                             const AioOptions& options) {
  return std::make_unique<ScratchFile>(folder, size_bytes, options);
}

std::unique_ptr<AsyncFile> AsyncFile::Counting(int64_t size_bytes, const AioOptions& options) {
  return std::make_unique<CountingFile>(size_bytes, options);
}

}  // namespace dsat::engine
