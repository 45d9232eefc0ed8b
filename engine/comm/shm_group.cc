// Ranks on one host: each rank's buffers lie in memory that all ranks see, so that a peer's rows
// are read where they are. One pass over the data and two or three barriers a collective.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/comm/mapping.h"
#include "base/unique_fd.h"
#include "engine/comm/process_group.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/sum_rows.h"

namespace dsat::engine {
namespace {

// Size 1: its rows are the sum, the gathered and the scattered.
class LocalGroup final : public ProcessGroup {
 public:
  LocalGroup() : ProcessGroup(0, 1) {}

  CommBuffer Allocate(int64_t bytes) override {
    DSAT_CHECK(bytes >= 0);
    memory_.push_back(Mapping::Private(bytes));
    return {static_cast<int>(memory_.size()) - 1, memory_.back().data(), bytes};
  }
  void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) override {
    Count(buffer, dtype, row_elems, 1);
  }
  void AllGather(const CommBuffer& buffer, DType dtype, int64_t row_elems) override {
    Count(buffer, dtype, row_elems, 1);
  }
  void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) override {
    Count(buffer, dtype, row_elems, 2);
  }
  double SumScalar(double value) override { return value; }
  double MaxScalar(double value) override { return value; }
  void Barrier() override {}

 private:
  std::vector<Mapping> memory_;
};

class ShmGroup final : public ProcessGroup {
 public:
  ShmGroup(int shared_fd, int rank, int size, std::chrono::milliseconds timeout);
  ~ShmGroup() override;

  CommBuffer Allocate(int64_t bytes) override;
  void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) override;
  void AllGather(const CommBuffer& buffer, DType dtype, int64_t row_elems) override;
  void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) override;
  double SumScalar(double value) override;
  double MaxScalar(double value) override;
  void Barrier() override { rendezvous_.Meet({.kind = Call::Kind::kBarrier}); }

 private:
  // One allocation: a block of each rank, one after another.
  struct Region {
    Mapping blocks;
    int64_t file_offset = 0;
    int64_t block_bytes = 0;
  };

  char* Row(const CommBuffer& buffer, int owner, int row, int64_t row_bytes) const;
  void SumOwnRow(const CommBuffer& buffer, DType dtype, int64_t row_elems);
  void CopyOtherRows(const CommBuffer& buffer, DType dtype, int64_t row_elems);

  UniqueFd file_;
  Rendezvous rendezvous_;
  std::vector<Region> regions_;  // By buffer id.
  int64_t file_end_ = Rendezvous::HeaderBytes();
};

UniqueFd Duplicate(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) ThrowErrno(fmt::format("the process group's memory file (fd {})", fd), errno);
  return copy;
}

// 0 or errno.
int Reserve(int fd, int64_t offset, int64_t bytes) {
  if (bytes == 0) return 0;
  // The kernel would try, and end some process, before it said no.
  if (bytes / sysconf(_SC_PAGESIZE) > sysconf(_SC_PHYS_PAGES)) return ENOMEM;
  for (;;) {
    // Pages are taken now: later, a lack of memory would be a SIGBUS.
    if (fallocate(fd, 0, offset, bytes) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

ShmGroup::ShmGroup(int shared_fd, int rank, int size, std::chrono::milliseconds timeout)
    : ProcessGroup(rank, size),
      file_(Duplicate(shared_fd)),
      rendezvous_(file_.get(), rank, size, timeout) {}

ShmGroup::~ShmGroup() {
  // Gives this rank's pages back although others may still have the file open. No peer reads them:
  // every collective ends with a barrier.
  for (const Region& region : regions_) {
    if (region.block_bytes == 0) continue;
    fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              region.file_offset + rank() * region.block_bytes, region.block_bytes);
  }
}

CommBuffer ShmGroup::Allocate(int64_t bytes) {
  DSAT_CHECK(bytes >= 0);
  const Call call{.kind = Call::Kind::kAllocate, .count = bytes};
  rendezvous_.Meet(call);
  const int64_t block_bytes = RoundUpToPage(bytes);
  const int64_t region_bytes = block_bytes * size();
  // Rank 0 takes the pages and tells all how that went.
  const int error = rank() == 0 ? Reserve(file_.get(), file_end_, region_bytes) : 0;
  rendezvous_.Meet(call, error);
  if (const int reserve_error = static_cast<int>(rendezvous_.ValueOf(0)); reserve_error != 0) {
    Throw(ErrorCode::kResourceExhausted, "communication memory, {} bytes on each of {} ranks: {}",
          bytes, size(), std::strerror(reserve_error));
  }
  Region region{Mapping(file_.get(), file_end_, region_bytes), file_end_, block_bytes};
  char* data =
      region.blocks.data() == nullptr ? nullptr : region.blocks.data() + rank() * block_bytes;
  file_end_ += region_bytes;
  regions_.push_back(std::move(region));
  return {static_cast<int>(regions_.size()) - 1, data, bytes};
}

char* ShmGroup::Row(const CommBuffer& buffer, int owner, int row, int64_t row_bytes) const {
  const Region& region = regions_[static_cast<size_t>(buffer.id)];
  return region.blocks.data() + owner * region.block_bytes + row * row_bytes;
}

// Only this rank touches row rank() of its own block and of its peers' while this runs.
void ShmGroup::SumOwnRow(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  if (row_elems == 0) return;
  const int64_t row_bytes = row_elems * BytesPerElem(dtype);
  std::vector<const void*> rows;
  for (int owner = 0; owner < size(); ++owner) {
    rows.push_back(Row(buffer, owner, rank(), row_bytes));
  }
  SumRows(Row(buffer, rank(), rank(), row_bytes), rows, dtype, row_elems);
}

void ShmGroup::CopyOtherRows(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  if (row_elems == 0) return;
  const int64_t row_bytes = row_elems * BytesPerElem(dtype);
  // Each rank starts with another peer, so that they do not all read the same memory at once.
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    std::memcpy(Row(buffer, rank(), peer, row_bytes), Row(buffer, peer, peer, row_bytes),
                static_cast<size_t>(row_bytes));
  }
}

void ShmGroup::ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  Count(buffer, dtype, row_elems, 1);
  rendezvous_.Meet({Call::Kind::kReduceScatter, dtype, buffer.id, row_elems});
  SumOwnRow(buffer, dtype, row_elems);
  rendezvous_.Wait();
}

void ShmGroup::AllGather(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  Count(buffer, dtype, row_elems, 1);
  rendezvous_.Meet({Call::Kind::kAllGather, dtype, buffer.id, row_elems});
  CopyOtherRows(buffer, dtype, row_elems);
  rendezvous_.Wait();
}

void ShmGroup::AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  Count(buffer, dtype, row_elems, 2);
  rendezvous_.Meet({Call::Kind::kAllReduce, dtype, buffer.id, row_elems});
  SumOwnRow(buffer, dtype, row_elems);
  rendezvous_.Wait();
  CopyOtherRows(buffer, dtype, row_elems);
  rendezvous_.Wait();
}

double ShmGroup::SumScalar(double value) {
  rendezvous_.Meet({.kind = Call::Kind::kSum}, value);
  double sum = 0;
  for (int rank = 0; rank < size(); ++rank)
    sum += rendezvous_.ValueOf(rank);
  return sum;
}

double ShmGroup::MaxScalar(double value) {
  rendezvous_.Meet({.kind = Call::Kind::kMax}, value);
  double maximum = rendezvous_.ValueOf(0);
  for (int rank = 1; rank < size(); ++rank) {
    const double other = rendezvous_.ValueOf(rank);
    if (other > maximum || std::isnan(other)) maximum = other;
  }
  return maximum;
}

}  // namespace

std::unique_ptr<ProcessGroup> MakeShmGroup(int shared_fd, int rank, int size,
                                           std::chrono::milliseconds timeout) {
  DSAT_CHECK(size >= 1 && rank >= 0 && rank < size, "rank {} of {}", rank, size);
  if (size == 1) return std::make_unique<LocalGroup>();
  return std::make_unique<ShmGroup>(shared_fd, rank, size, timeout);
}

}  // namespace dsat::engine
