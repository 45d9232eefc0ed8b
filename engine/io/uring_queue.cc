// Blocks in flight on an io_uring. The only file that includes liburing.
#include <liburing.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "engine/io/block_queue.h"

namespace dsat::engine {
namespace {

class UringQueue final : public BlockQueue {
 public:
  explicit UringQueue(const io_uring& ring) : ring_(ring) {}
  ~UringQueue() override { io_uring_queue_exit(&ring_); }

  void Push(int slot, const Block& block) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    DSAT_CHECK(entry != nullptr, "more blocks than the ring has entries");
    const auto bytes = static_cast<unsigned>(block.bytes);
    const auto offset = static_cast<uint64_t>(block.offset);
    if (block.is_write) {
      io_uring_prep_write(entry, block.fd, block.data, bytes, offset);
    } else {
      io_uring_prep_read(entry, block.fd, block.data, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, static_cast<uint64_t>(slot));
  }

  void Submit() override {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted >= 0 || submitted == -EINTR) continue;
      // The kernel is short of memory for a moment.
      DSAT_CHECK(submitted == -EAGAIN || submitted == -EBUSY, "io_uring_submit: {}",
                 std::strerror(-submitted));
      usleep(1000);
    }
  }

  Completion Wait() override {
    io_uring_cqe* entry = nullptr;
    int error = 0;
    do {
      error = io_uring_wait_cqe(&ring_, &entry);
    } while (error == -EINTR || error == -EAGAIN);
    DSAT_CHECK(error == 0, "io_uring_wait_cqe: {}", std::strerror(-error));
    const Completion completion{static_cast<int>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return completion;
  }

 private:
  io_uring ring_;
};

bool ReadsAndWrites(io_uring& ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return false;
  const bool supported = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                         io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  io_uring_free_probe(probe);
  return supported;
}

}  // namespace

std::unique_ptr<BlockQueue> MakeUringQueue(int depth) {
  io_uring ring{};
  if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) != 0) return nullptr;
  if (!ReadsAndWrites(ring)) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<UringQueue>(ring);
}

}  // namespace dsat::engine
