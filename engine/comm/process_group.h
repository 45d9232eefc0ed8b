// The ranks of one trial and their collectives.
//
// Law of collectives: issued only by the executor, in plan order, on every rank, never under a
// condition on local data. Collectives work in place on registered buffers of P rows, so that a
// same-host transport can keep them in memory that all ranks see, and a network transport can pin
// them. All calls have a time-out; a dead or absent peer is an error within seconds.
#ifndef DSAT_ENGINE_COMM_PROCESS_GROUP_H_
#define DSAT_ENGINE_COMM_PROCESS_GROUP_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "engine/tensor.h"

namespace dsat::engine {

// Communication memory: this rank's block of P rows. Freed with the group.
struct CommBuffer {
  int id = -1;
  void* data = nullptr;  // nullptr in a counting group
  int64_t bytes = 0;
};

// Messages and bytes this rank has sent, by what a ring sends (docs/engine.md): (P - 1) / P of the
// buffer for all_gather and reduce_scatter, twice that for all_reduce.
struct Traffic {
  int64_t num_collectives = 0;
  int64_t sent_bytes = 0;
  bool operator==(const Traffic&) const = default;
};

// Not thread-safe: one thread issues. Size 1 is the same interface and does nothing.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Traffic& traffic() const { return traffic_; }

  // A collective call: the same sizes in the same order on every rank. Contents are zero.
  virtual CommBuffer Allocate(int64_t bytes) = 0;

  // The buffer holds size() rows of `row_elems`. Afterwards row rank() holds the sum over the ranks
  // of their row rank(); other rows are unspecified. Sums are formed in f32, in rank order: the
  // result does not depend on timing and is the same bits as AllReduce gives.
  virtual void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) = 0;
  // Afterwards row q holds rank q's row q, for every q.
  virtual void AllGather(const CommBuffer& buffer, DType dtype, int64_t row_elems) = 0;
  // Afterwards the buffer (size() rows) holds the sum over the ranks, the same bits on every rank.
  virtual void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) = 0;

  // The sum, or the maximum, of one number over the ranks (NaN if one is); also a barrier.
  virtual double SumScalar(double value) = 0;
  virtual double MaxScalar(double value) = 0;
  virtual void Barrier() = 0;

 protected:
  ProcessGroup(int rank, int size) : rank_(rank), size_(size) {}
  // Called by every implementation for every collective; scalars and barriers carry no model state
  // and are not counted. `passes` as in Traffic. REQUIRES: the buffer holds size() rows.
  void Count(const CommBuffer& buffer, DType dtype, int64_t row_elems, int passes) {
    const int64_t row_bytes = row_elems * BytesPerElem(dtype);
    DSAT_CHECK(row_elems >= 0 && size_ * row_bytes <= buffer.bytes,
               "{} rows of {} bytes in a buffer of {}", size_, row_bytes, buffer.bytes);
    ++traffic_.num_collectives;
    traffic_.sent_bytes += passes * row_bytes * (size_ - 1);
  }

  Traffic traffic_;

 private:
  int rank_;
  int size_;
};

// Ranks on one host over a memory file that all of them have open (memfd, inherited from the
// supervisor; borrowed, empty at first). Returns when all ranks have joined. One file may serve one
// group after another if each ended without an error. Size 1 needs no file (`shared_fd` -1).
//
// This and every call below throws
//   kDeadlineExceeded  naming the peers that did not come within `timeout`;
//   kUnavailable       within about 100 ms after a peer's process has ended (pidfd) or a peer's
//   group
//                      object was destroyed: "rank 2 (pid 123) has ended";
//   kInternal          naming both calls if two ranks issued different ones (a bug of the caller);
//   kResourceExhausted from Allocate if the memory cannot be had; the group stays usable.
// After any of the others the group is broken: every further call throws.
std::unique_ptr<ProcessGroup> MakeShmGroup(int shared_fd, int rank, int size,
                                           std::chrono::milliseconds timeout);
// Moves nothing; counts what `rank` of `size` would send. Sums and maxima return their argument.
std::unique_ptr<ProcessGroup> MakeCountingGroup(int rank, int size);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_PROCESS_GROUP_H_
