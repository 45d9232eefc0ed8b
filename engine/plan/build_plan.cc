// Plan generation. Compute instructions come first, as a list; a builder walks it and puts the
// communication in between.
#include "engine/plan/build_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace dsat::engine {
namespace {

struct Compute {
  Op op;
  int micro_batch;
  int unit;
};

std::vector<Compute> ComputeList(int num_units, int64_t accumulation_steps) {
  std::vector<Compute> list;
  for (int mb = 0; mb < accumulation_steps; ++mb) {
    for (int u = 0; u < num_units; ++u)
      list.push_back({Op::kForward, mb, u});
    for (int u = num_units - 1; u >= 0; --u)
      list.push_back({Op::kBackward, mb, u});
  }
  return list;
}

// The buckets of one kind of transfer: one, or two if collectives overlap computing.
struct Pool {
  Transfer like;  // What its transfers are.
  int first_bucket = 0;
  int64_t row_capacity = 0;  // Elements per row of a full bucket.
  bool shared = true;        // Several units in one bucket.
  int num_opened = 0;
  int open = -1;  // The transfer that is being filled.
};

class PlanBuilder {
 public:
  PlanBuilder(const std::vector<PlanUnit>& units, const PlanOptions& options);
  Plan Build();

 private:
  bool Sharded(int unit) const { return plan_.param_homes[unit] == Placement::kShard; }
  int64_t Size(int unit) const { return units_[unit].num_elems; }
  int64_t RowCapacity(int64_t bucket_elems) const;
  std::vector<int> NeedsOf(const Compute& compute) const;

  void Emit(Op op, int unit = -1, int micro_batch = -1, int transfer = -1);
  void Append(Pool& pool, int unit);
  void Open(Pool& pool);
  void Flush(Pool& pool);
  void Wait(int transfer);
  void WaitForUnit(int unit);
  void WaitForAll();

  void FetchFor(size_t index);
  void Fetch(const std::vector<int>& wanted);
  std::vector<int> LookAhead(size_t index, const std::vector<int>& wanted) const;
  void FreeParamsAfter(size_t index);
  void ReduceAfter(const Compute& compute);
  void OptimizerStep();

  const std::vector<PlanUnit>& units_;
  PlanOptions options_;
  std::vector<Compute> computes_;
  std::vector<int> last_writer_;  // Per unit: the unit whose backward completes its gradient.
  Plan plan_;
  Phase phase_ = Phase::kForward;
  Pool reduce_;
  Pool gather_;
  std::vector<int> in_flight_;  // Transfers started and not waited for, oldest first.
  std::vector<bool> live_;      // Gathered, or about to be.
  std::vector<bool> ahead_;     // Live, but not used since it was gathered.
};

PlanBuilder::PlanBuilder(const std::vector<PlanUnit>& units, const PlanOptions& options)
    : units_(units),
      options_(options),
      computes_(ComputeList(static_cast<int>(units.size()), options.accumulation_steps)),
      last_writer_(units.size()),
      live_(units.size()),
      ahead_(units.size()) {
  const int num_units = static_cast<int>(units.size());
  DSAT_CHECK(num_units > 0 && options.accumulation_steps > 0 && options.world_size > 0);
  // With one rank, every placement is the same.
  const StateHomes homes = options.world_size > 1 ? options.homes : StateHomes{};
  plan_.world_size = options.world_size;
  plan_.overlap = options.overlap;
  plan_.grad_home = homes.grad.placement;
  plan_.optimizer_home = homes.optimizer.placement;
  for (int u = 0; u < num_units; ++u) {
    DSAT_CHECK(Size(u) % (options.world_size * kAlignElems) == 0);
    const bool persistent = units[u].largest_param <= options.persistent_param_elems;
    plan_.param_homes.push_back(persistent ? Placement::kReplicate : homes.param.placement);
    last_writer_[u] = u;
    // Backward runs from the last unit to the first.
    for (const int other : units[u].borrows)
      last_writer_[other] = std::min(last_writer_[other], u);
  }
  // Reduced gradients go where the optimizer wants them.
  const bool to_shard = plan_.optimizer_home == Placement::kShard;
  const bool scatter = to_shard && options.reduce_scatter;
  reduce_.like.state = State::kGrad;
  reduce_.like.collective = scatter ? Collective::kReduceScatter : Collective::kAllReduce;
  reduce_.like.to = plan_.optimizer_home;
  reduce_.row_capacity = RowCapacity(options.reduce_bucket_elems);
  reduce_.shared = options.share_reduce_buckets;
  gather_.first_bucket = options.overlap ? 2 : 1;
  gather_.row_capacity = RowCapacity(options.gather_bucket_elems);
  plan_.bucket_row_elems.resize(options.overlap ? 4 : 2);
}

int64_t PlanBuilder::RowCapacity(int64_t bucket_elems) const {
  return std::max<int64_t>(bucket_elems / options_.world_size / kAlignElems, 1) * kAlignElems;
}

// The units that must be gathered for it.
std::vector<int> PlanBuilder::NeedsOf(const Compute& compute) const {
  std::vector<int> needs;
  if (Sharded(compute.unit)) needs.push_back(compute.unit);
  for (const int other : units_[compute.unit].borrows) {
    if (Sharded(other)) needs.push_back(other);
  }
  return needs;
}

void PlanBuilder::Emit(Op op, int unit, int micro_batch, int transfer) {
  plan_.instructions.push_back({op, phase_, unit, micro_batch, transfer});
}

// Puts a unit into the pool's buckets, cutting it where a bucket is full.
void PlanBuilder::Append(Pool& pool, int unit) {
  const int64_t slice = Size(unit) / options_.world_size;
  for (int64_t offset = 0; offset < slice;) {
    if (pool.open < 0) Open(pool);
    const int t = pool.open;
    Transfer& transfer = plan_.transfers[t];
    const int64_t count = std::min(slice - offset, pool.row_capacity - transfer.row_elems);
    transfer.segments.push_back({unit, offset, count});
    transfer.row_elems += count;
    offset += count;
    Emit(Op::kPack, unit, -1, t);
    if (transfer.row_elems == pool.row_capacity) Flush(pool);
  }
  if (!pool.shared) Flush(pool);
}

void PlanBuilder::Open(Pool& pool) {
  pool.open = static_cast<int>(plan_.transfers.size());
  Transfer transfer = pool.like;
  transfer.bucket = pool.first_bucket + (options_.overlap ? pool.num_opened % 2 : 0);
  ++pool.num_opened;
  for (const int t : std::vector<int>(in_flight_)) {
    if (plan_.transfers[t].bucket == transfer.bucket) Wait(t);
  }
  plan_.transfers.push_back(std::move(transfer));
}

void PlanBuilder::Flush(Pool& pool) {
  if (pool.open < 0) return;
  const int t = std::exchange(pool.open, -1);
  int64_t& row_elems = plan_.bucket_row_elems[plan_.transfers[t].bucket];
  row_elems = std::max(row_elems, plan_.transfers[t].row_elems);
  Emit(Op::kStart, -1, -1, t);
  in_flight_.push_back(t);
  if (!options_.overlap) Wait(t);
}

void PlanBuilder::Wait(int transfer) {
  std::erase(in_flight_, transfer);
  Emit(Op::kWait, -1, -1, transfer);
}

void PlanBuilder::WaitForUnit(int unit) {
  for (const int t : std::vector<int>(in_flight_)) {
    const Transfer& transfer = plan_.transfers[t];
    const auto has_unit = [&](const Segment& segment) { return segment.unit == unit; };
    if (transfer.state == State::kParam && std::ranges::any_of(transfer.segments, has_unit)) {
      Wait(t);
    }
  }
}

void PlanBuilder::WaitForAll() {
  for (const int t : std::vector<int>(in_flight_))
    Wait(t);
}

// Everything computes_[index] needs is gathered; then, if collectives overlap, what comes next
// begins.
void PlanBuilder::FetchFor(size_t index) {
  const std::vector<int> needs = NeedsOf(computes_[index]);
  std::vector<int> wanted;
  std::ranges::copy_if(needs, std::back_inserter(wanted), [&](int unit) { return !live_[unit]; });
  if (!wanted.empty() && !options_.overlap) wanted = LookAhead(index, wanted);
  Fetch(wanted);
  for (const int unit : needs) {
    ahead_[unit] = false;
    WaitForUnit(unit);
  }
  if (options_.overlap) Fetch(LookAhead(index, {}));
}

void PlanBuilder::Fetch(const std::vector<int>& wanted) {
  for (const int unit : wanted) {
    live_[unit] = ahead_[unit] = true;
    Append(gather_, unit);
  }
  Flush(gather_);
}

// `wanted` and, in the order of their use, the units after it that the budgets allow.
std::vector<int> PlanBuilder::LookAhead(size_t index, const std::vector<int>& wanted) const {
  std::vector<int> result = wanted;
  int64_t live = 0;
  int64_t ahead = 0;
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    live += live_[u] ? Size(u) : 0;
    ahead += ahead_[u] ? Size(u) : 0;
  }
  for (const int unit : wanted)
    live += Size(unit);
  for (size_t i = index + 1; i < computes_.size(); ++i) {
    for (const int unit : NeedsOf(computes_[i])) {
      if (live_[unit] || std::ranges::count(result, unit) > 0) continue;
      live += Size(unit);
      ahead += Size(unit);
      if (live > options_.max_live_elems || ahead > options_.prefetch_elems) return result;
      result.push_back(unit);
    }
  }
  return result;
}

// Gathered copies go, unless the next instruction wants them or they came for a later one.
void PlanBuilder::FreeParamsAfter(size_t index) {
  std::vector<int> keep;
  if (index + 1 < computes_.size()) keep = NeedsOf(computes_[index + 1]);
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (!live_[u] || ahead_[u] || std::ranges::count(keep, u) > 0) continue;
    live_[u] = false;
    Emit(Op::kFreeParam, u);
  }
}

// Reduces the gradients that this backward has completed, if now is the time.
void PlanBuilder::ReduceAfter(const Compute& compute) {
  const bool last = compute.micro_batch == options_.accumulation_steps - 1;
  if (options_.world_size == 1 || !(last || plan_.grad_home == Placement::kShard)) return;
  for (int u = static_cast<int>(units_.size()) - 1; u >= 0; --u) {
    if (last_writer_[u] != compute.unit || Size(u) == 0) continue;
    reduce_.like.accumulate = plan_.grad_home == Placement::kShard && compute.micro_batch > 0;
    Append(reduce_, u);
    if (reduce_.like.to == Placement::kShard) Emit(Op::kFreeGrad, u);
  }
  if (compute.unit == 0) Flush(reduce_);
}

void PlanBuilder::OptimizerStep() {
  WaitForAll();
  phase_ = Phase::kStep;
  Emit(Op::kNorm);
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (Size(u) == 0) continue;
    Emit(Op::kUpdate, u);
    if (plan_.optimizer_home == Placement::kShard && !Sharded(u)) Append(gather_, u);
  }
  Flush(gather_);
  WaitForAll();
  Emit(Op::kMeanLoss);
}

Plan PlanBuilder::Build() {
  for (size_t i = 0; i < computes_.size(); ++i) {
    const Compute& compute = computes_[i];
    const bool forward = compute.op == Op::kForward;
    phase_ = forward ? Phase::kForward : Phase::kBackward;
    if (forward && compute.unit == 0) Emit(Op::kLoadBatch, -1, compute.micro_batch);
    FetchFor(i);
    Emit(compute.op, compute.unit, compute.micro_batch);
    FreeParamsAfter(i);
    if (!forward) ReduceAfter(compute);
  }
  OptimizerStep();
  return std::move(plan_);
}

}  // namespace

Plan BuildPlan(const std::vector<PlanUnit>& units, const PlanOptions& options) {
  return PlanBuilder(units, options).Build();
}

}  // namespace dsat::engine
