// A plan under construction: instructions in order, and transfers that fill and share buckets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/plan/plan.h"

namespace dsat::engine {

// The buckets of one kind of transfer, which are used in turn.
struct BucketPool {
  Transfer like;  // A template of its transfers.
  int first_bucket = 0;
  std::vector<int64_t> row_capacities;  // Elements per row of a full bucket, by bucket.
  bool shared = true;                   // Several units in one bucket.
  size_t num_opened = 0;
  int open = -1;  // The transfer that is being filled.
};

class PlanWriter {
 public:
  explicit PlanWriter(Plan& plan) : plan_(plan) {}

  void set_phase(Phase phase) { phase_ = phase; }
  void Emit(const Instruction& instruction) { plan_.instructions.push_back(instruction); }
  void Emit(Op op, int unit = -1) { plan_.instructions.push_back({op, phase_, unit}); }
  void EmitSubGroup(Op op, int sub_group) {
    plan_.instructions.push_back({op, phase_, plan_.sub_groups[sub_group].unit, -1, -1, sub_group});
  }

  // Appends `slice_elems` elements of each slice of a unit to the pool's buckets, and divides the
  // unit where a bucket is full.
  void Append(BucketPool& pool, int unit, int64_t slice_elems) {
    for (int64_t offset = 0; offset < slice_elems;) {
      if (pool.open < 0) Open(pool);
      const int t = pool.open;
      Transfer& transfer = plan_.transfers[t];
      const int64_t capacity = pool.row_capacities[transfer.bucket - pool.first_bucket];
      const int64_t count = std::min(slice_elems - offset, capacity - transfer.row_elems);
      transfer.segments.push_back({unit, offset, count});
      transfer.row_elems += count;
      offset += count;
      EmitTransfer(Op::kPack, t, unit);
      if (transfer.row_elems == capacity) Flush(pool);
    }
    if (!pool.shared) Flush(pool);
  }
  // Starts the transfer that is being filled.
  void Flush(BucketPool& pool) {
    if (pool.open < 0) return;
    const int t = std::exchange(pool.open, -1);
    int64_t& row_elems = plan_.bucket_row_elems[plan_.transfers[t].bucket];
    row_elems = std::max(row_elems, plan_.transfers[t].row_elems);
    EmitTransfer(Op::kStart, t);
    in_flight_.push_back(t);
    if (!plan_.overlap) Wait(t);
  }
  // Waits until the unit's parameters have arrived.
  void WaitForParams(int unit) {
    const auto has_unit = [&](const Segment& segment) { return segment.unit == unit; };
    WaitIf([&](const Transfer& transfer) {
      return transfer.state == State::kParam && std::ranges::any_of(transfer.segments, has_unit);
    });
  }
  void WaitForAll() {
    WaitIf([](const Transfer&) { return true; });
  }

 private:
  void EmitTransfer(Op op, int transfer, int unit = -1) {
    plan_.instructions.push_back({op, phase_, unit, -1, transfer});
  }
  void Open(BucketPool& pool) {
    DSAT_CHECK(!pool.row_capacities.empty());
    pool.open = static_cast<int>(plan_.transfers.size());
    Transfer transfer = pool.like;
    transfer.bucket =
        pool.first_bucket + static_cast<int>(pool.num_opened++ % pool.row_capacities.size());
    WaitIf([&](const Transfer& other) { return other.bucket == transfer.bucket; });
    plan_.transfers.push_back(std::move(transfer));
  }
  void Wait(int transfer) {
    std::erase(in_flight_, transfer);
    EmitTransfer(Op::kWait, transfer);
  }
  template <typename Predicate>
  void WaitIf(const Predicate& predicate) {
    for (const int t : std::vector<int>(in_flight_)) {
      if (predicate(plan_.transfers[t])) Wait(t);
    }
  }

  Plan& plan_;
  Phase phase_ = Phase::kForward;
  std::vector<int> in_flight_;  // Transfers started and not waited for, oldest first.
};

}  // namespace dsat::engine
