// A plan under construction: instructions in order, and transfers that fill and share buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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
  void Append(BucketPool& pool, int unit, int64_t slice_elems);
  // Starts the transfer that is being filled.
  void Flush(BucketPool& pool);
  // Waits until the unit's parameters have arrived.
  void WaitForParams(int unit);
  void WaitForAll();

 private:
  void EmitTransfer(Op op, int transfer, int unit = -1) {
    plan_.instructions.push_back({op, phase_, unit, -1, transfer});
  }
  void Open(BucketPool& pool);
  // The capacity of the transfer that is being filled.
  int64_t RowCapacity(const BucketPool& pool) const;
  void Wait(int transfer);

  Plan& plan_;
  Phase phase_ = Phase::kForward;
  std::vector<int> in_flight_;  // Transfers started and not waited for, oldest first.
};

}  // namespace dsat::engine
