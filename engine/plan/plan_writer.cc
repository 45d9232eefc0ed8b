// A plan under construction.
#include "engine/plan/plan_writer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace dsat::engine {

void PlanWriter::Append(BucketPool& pool, int unit, int64_t slice_elems) {
  for (int64_t offset = 0; offset < slice_elems;) {
    if (pool.open < 0) Open(pool);
    const int t = pool.open;
    Transfer& transfer = plan_.transfers[t];
    const int64_t capacity = RowCapacity(pool);
    const int64_t count = std::min(slice_elems - offset, capacity - transfer.row_elems);
    transfer.segments.push_back({unit, offset, count});
    transfer.row_elems += count;
    offset += count;
    EmitTransfer(Op::kPack, t, unit);
    if (transfer.row_elems == capacity) Flush(pool);
  }
  if (!pool.shared) Flush(pool);
}

int64_t PlanWriter::RowCapacity(const BucketPool& pool) const {
  return pool.row_capacities[plan_.transfers[pool.open].bucket - pool.first_bucket];
}

void PlanWriter::Open(BucketPool& pool) {
  DSAT_CHECK(!pool.row_capacities.empty());
  pool.open = static_cast<int>(plan_.transfers.size());
  Transfer transfer = pool.like;
  transfer.bucket =
      pool.first_bucket + static_cast<int>(pool.num_opened++ % pool.row_capacities.size());
  for (const int t : std::vector<int>(in_flight_)) {
    if (plan_.transfers[t].bucket == transfer.bucket) Wait(t);
  }
  plan_.transfers.push_back(std::move(transfer));
}

void PlanWriter::Flush(BucketPool& pool) {
  if (pool.open < 0) return;
  const int t = std::exchange(pool.open, -1);
  int64_t& row_elems = plan_.bucket_row_elems[plan_.transfers[t].bucket];
  row_elems = std::max(row_elems, plan_.transfers[t].row_elems);
  EmitTransfer(Op::kStart, t);
  in_flight_.push_back(t);
  if (!plan_.overlap) Wait(t);
}

void PlanWriter::Wait(int transfer) {
  std::erase(in_flight_, transfer);
  EmitTransfer(Op::kWait, transfer);
}

void PlanWriter::WaitForParams(int unit) {
  for (const int t : std::vector<int>(in_flight_)) {
    const Transfer& transfer = plan_.transfers[t];
    const auto has_unit = [&](const Segment& segment) { return segment.unit == unit; };
    if (transfer.state == State::kParam && std::ranges::any_of(transfer.segments, has_unit)) {
      Wait(t);
    }
  }
}

void PlanWriter::WaitForAll() {
  for (const int t : std::vector<int>(in_flight_))
    Wait(t);
}

}  // namespace dsat::engine
