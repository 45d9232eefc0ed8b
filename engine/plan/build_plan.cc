// Plan generation. What is computed comes first, as a list (schedule.h); a builder walks it and
// puts the moving of state in between, then adds the step.
#include "engine/plan/build_plan.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/plan/plan_writer.h"

namespace dsat::engine {
namespace {

class PlanBuilder {
 public:
  PlanBuilder(const std::vector<PlanUnit>& units, const PlanOptions& options)
      : units_(units),
        options_(options),
        last_writer_(units.size(), -1),
        live_(units.size()),
        ahead_(units.size()),
        reading_(units.size()) {
    DSAT_CHECK(!units.empty() && options.accumulation_steps > 0 && options.world_size > 0);
    plan_.world_size = options.world_size;
    plan_.overlap = options.overlap;
    plan_.reduces_grads = options.reduce_grads;
    plan_.num_trust_ratios = options.num_trust_ratios;
    schedule_ = MakeSchedule();
    plan_.first_unit = schedule_.first_unit;
    plan_.end_unit = schedule_.end_unit;
    plan_.num_in_flight = options.backward ? NumInFlight(schedule_) : 1;
    computes_ = Schedule(schedule_);
    PlaceUnits();
    MakeBucketPools();
    if (options_.backward) MakeSubGroups();
    for (const Instruction& compute : computes_)
      needs_.push_back(NeedsOf(compute));
  }

  Plan Build() {
    for (size_t i = 0; i < computes_.size(); ++i) {
      const Instruction& compute = computes_[i];
      writer_.set_phase(compute.phase);
      FetchFor(i);
      writer_.Emit(compute);
      FreeParamsAfter(i);
      if (compute.op == Op::kBackward) ReduceAfter(compute);
    }
    if (options_.backward) OptimizerStep();
    writer_.set_phase(Phase::kStep);
    writer_.Emit(Op::kMeanLoss);
    return std::move(plan_);
  }

 private:
  int num_units() const { return static_cast<int>(units_.size()); }
  bool Sharded(int unit) const { return plan_.units[unit].param.placement == Placement::kShard; }
  bool OnDisk(int unit) const { return plan_.units[unit].param.tier == Tier::kNvme; }
  // Elements on this stage.
  int64_t Size(int unit) const { return plan_.units[unit].present ? units_[unit].num_elems : 0; }
  int64_t SliceElems(int unit) const { return Size(unit) / options_.world_size; }

  // One bucket, or two if collectives overlap computing, but none that the given ones lack.
  std::vector<int64_t> RowCapacities(int first_bucket, int64_t bucket_elems) const {
    const int64_t most =
        std::max<int64_t>(bucket_elems / options_.world_size / kAlignElems, 1) * kAlignElems;
    std::vector<int64_t> capacities(options_.overlap ? 2 : 1, most);
    const std::vector<int64_t>& given = options_.given_bucket_row_elems;
    for (size_t i = 0; !given.empty() && i < capacities.size(); ++i)
      capacities[i] = std::min(most, given[static_cast<size_t>(first_bucket) + i]);
    std::erase(capacities, 0);
    return capacities;
  }

  // Decides which units are here, who else holds them, and who writes their gradients.
  void PlaceUnits() {
    plan_.units.resize(units_.size());
    for (int u = 0; u < num_units(); ++u) {
      for (int held : units_[u].borrows)
        plan_.units[held].holders.push_back(StageOf(u));
      plan_.units[u].holders.push_back(StageOf(u));
    }
    for (int u = 0; u < num_units(); ++u) {
      UnitPlan& unit = plan_.units[u];
      std::ranges::sort(unit.holders);
      unit.holders.erase(std::ranges::unique(unit.holders).begin(), unit.holders.end());
      unit.present = std::ranges::count(unit.holders, options_.stage) > 0;
      unit.counted = StageOf(u) == options_.stage;
      unit.num_elems = Size(u);
      unit.trained = Size(u) > 0 && !units_[u].frozen;
    }
    for (int u = 0; u < num_units(); ++u) {
      const auto trained = [&](int unit) { return plan_.units[unit].trained; };
      plan_.units[u].writes_grads =
          plan_.units[u].trained || std::ranges::any_of(units_[u].borrows, trained);
    }
    // Backward runs from the last unit to the first.
    for (int u = schedule_.end_unit - 1; u >= schedule_.first_unit; --u) {
      last_writer_[u] = u;
      for (const int other : units_[u].borrows)
        last_writer_[other] = u;
    }
    PlaceState();
  }

  // With one rank every placement is the same, unless state must leave the device.
  void PlaceState() {
    StateHomes homes = options_.homes;
    const auto merge = [&](Home& home) {
      if (options_.world_size == 1 && home.tier == Tier::kDevice) home.placement = {};
    };
    merge(homes.param);
    merge(homes.optimizer);
    if (homes.optimizer.placement == Placement::kReplicate) homes.grad = {Placement::kPartial};
    plan_.grad_home = homes.grad.placement;
    plan_.optimizer_home = homes.optimizer.placement;
    PlaceParams(homes);
    PlaceOptimizer(homes);
  }

  int StageOf(int unit) const {
    const std::vector<int>& begins = options_.stage_begins;
    if (begins.empty()) return 0;
    return static_cast<int>(std::ranges::upper_bound(begins, unit) - begins.begin()) - 1;
  }

  void PlaceParams(const StateHomes& homes) {
    int64_t persistent_elems = 0;
    int64_t host_elems = 0;
    for (int u = 0; u < num_units(); ++u) {
      const bool persistent = units_[u].largest_param <= options_.persistent_param_elems &&
                              persistent_elems + Size(u) <= options_.max_persistent_elems;
      const bool shard = homes.param.placement == Placement::kShard && !persistent;
      persistent_elems += persistent ? Size(u) : 0;
      Tier tier = shard ? homes.param.tier : Tier::kDevice;
      if (tier == Tier::kNvme) {
        const bool fits = host_elems + Size(u) <= options_.offload.max_param_elems_in_host;
        host_elems += fits ? Size(u) : 0;
        if (fits || Size(u) == 0) tier = Tier::kHost;
      }
      plan_.units[u].param = {shard ? Placement::kShard : Placement::kReplicate, tier};
    }
  }

  void PlaceOptimizer(const StateHomes& homes) {
    double total = 0;
    for (int u = 0; u < num_units(); ++u)
      total += plan_.units[u].trained ? static_cast<double>(Size(u)) : 0;
    double offloaded = 0;
    for (int u = 0; u < num_units(); ++u) {
      const auto size = static_cast<double>(plan_.units[u].trained ? Size(u) : 0);
      const bool offload = homes.optimizer.tier != Tier::kDevice && size > 0 &&
                           offloaded + size <= options_.offload.optimizer_ratio * total;
      offloaded += offload ? size : 0;
      plan_.units[u].optimizer_tier = offload ? homes.optimizer.tier : Tier::kDevice;
    }
  }

  // Reduced gradients go where the optimizer wants them.
  void MakeBucketPools() {
    const bool to_shard = plan_.optimizer_home == Placement::kShard;
    const bool scatter = to_shard && options_.reduce_scatter;
    reduce_.like.state = State::kGrad;
    reduce_.like.collective = scatter ? Collective::kReduceScatter : Collective::kAllReduce;
    reduce_.like.to = plan_.optimizer_home;
    reduce_.row_capacities = RowCapacities(reduce_.first_bucket, options_.reduce_bucket_elems);
    reduce_.shared = options_.share_reduce_buckets;
    gather_.first_bucket = options_.overlap ? 2 : 1;
    gather_.row_capacities = RowCapacities(gather_.first_bucket, options_.gather_bucket_elems);
    plan_.bucket_row_elems.resize(options_.overlap ? 4 : 2);
  }

  void MakeSubGroups() {
    const int64_t most = std::max(options_.sub_group_elems / kAlignElems, int64_t{1}) * kAlignElems;
    for (int u = 0; u < num_units(); ++u) {
      if (!plan_.units[u].trained) continue;
      const int64_t size = plan_.optimizer_home == Placement::kShard ? SliceElems(u) : Size(u);
      for (int64_t offset = 0; offset < size; offset += most) {
        const bool on_disk = plan_.units[u].optimizer_tier == Tier::kNvme;
        if (on_disk) on_disk_.push_back(static_cast<int>(std::ssize(plan_.sub_groups)));
        plan_.sub_groups.push_back({u, offset, std::min(most, size - offset), on_disk});
      }
    }
    buffer_owner_.assign(static_cast<size_t>(options_.offload.num_state_buffers), -1);
  }

  ScheduleOptions MakeSchedule() const {
    ScheduleOptions schedule;
    const std::vector<int>& begins = options_.stage_begins;
    schedule.num_units = num_units();
    schedule.num_stages = std::max<int>(static_cast<int>(begins.size()) - 1, 1);
    schedule.stage = options_.stage;
    schedule.first_unit = begins.empty() ? 0 : begins[options_.stage];
    schedule.end_unit = begins.empty() ? num_units() : begins[options_.stage + 1];
    schedule.num_micro_batches = options_.accumulation_steps;
    schedule.backward = options_.backward;
    schedule.checkpoint_interval = options_.checkpoint_interval;
    schedule.checkpoints_on_host = options_.checkpoints_on_host;
    const auto trained = [](const PlanUnit& unit) { return !unit.frozen && unit.num_elems > 0; };
    const auto first = std::ranges::find_if(units_, trained);
    DSAT_CHECK(first != units_.end(), "all units are frozen");
    schedule.first_trained = static_cast<int>(first - units_.begin());
    return schedule;
  }

  // The units that must be gathered for it.
  std::vector<int> NeedsOf(const Instruction& compute) const {
    std::vector<int> needs;
    if (compute.op != Op::kForward && compute.op != Op::kRecompute && compute.op != Op::kBackward)
      return needs;
    if (Sharded(compute.unit) && Size(compute.unit) > 0) needs.push_back(compute.unit);
    for (const int other : units_[compute.unit].borrows) {
      if (Sharded(other)) needs.push_back(other);
    }
    return needs;
  }

  // Everything computes_[index] needs is gathered; then, if collectives overlap, what comes next
  // begins.
  void FetchFor(size_t index) {
    const std::vector<int>& needs = needs_[index];
    std::vector<int> wanted;
    std::ranges::copy_if(needs, std::back_inserter(wanted), [&](int unit) { return !live_[unit]; });
    if (!wanted.empty() && !options_.overlap) wanted = LookAhead(index, wanted);
    Fetch(wanted);
    for (const int unit : needs) {
      ahead_[unit] = false;
      writer_.WaitForParams(unit);
    }
    if (options_.overlap && !needs.empty()) Fetch(LookAhead(index, {}));
    ReadAhead(index);
  }

  void Fetch(const std::vector<int>& wanted) {
    for (const int unit : wanted) {
      live_[unit] = ahead_[unit] = true;
      Read(unit);
      if (OnDisk(unit)) writer_.Emit(Op::kAwaitSlice, unit);
      writer_.Append(gather_, unit, SliceElems(unit));
      if (OnDisk(unit)) writer_.Emit(Op::kFreeSlice, unit);
      reading_[unit] = false;
    }
    writer_.Flush(gather_);
  }

  void Read(int unit) {
    if (!OnDisk(unit) || reading_[unit]) return;
    reading_[unit] = true;
    writer_.Emit(Op::kReadSlice, unit);
  }

  // Slices of the units that will be gathered next begin to come from disk.
  void ReadAhead(size_t index) {
    auto under_way = std::ranges::count(reading_, true);
    const size_t end = std::min(computes_.size(), index + 1 + 4 * units_.size());
    for (size_t i = index + 1; i < end; ++i) {
      for (const int unit : needs_[i]) {
        if (!OnDisk(unit) || live_[unit] || reading_[unit]) continue;
        if (under_way >= options_.offload.num_params_ahead) return;
        Read(unit);
        ++under_way;
      }
    }
  }

  // `wanted` and, in the order of their use, the units after it that the budgets allow.
  std::vector<int> LookAhead(size_t index, const std::vector<int>& wanted) const {
    std::vector<int> result = wanted;
    int64_t live = 0;
    int64_t ahead = 0;
    for (int u = 0; u < num_units(); ++u) {
      live += live_[u] ? Size(u) : 0;
      ahead += ahead_[u] ? Size(u) : 0;
    }
    for (const int unit : wanted)
      live += Size(unit);
    // Every unit is used within so many instructions.
    const size_t end = std::min(computes_.size(), index + 1 + 8 * units_.size());
    for (size_t i = index + 1; i < end; ++i) {
      for (const int unit : needs_[i]) {
        if (live_[unit] || std::ranges::count(result, unit) > 0) continue;
        live += Size(unit);
        ahead += Size(unit);
        if (live > options_.max_live_elems || ahead > options_.prefetch_elems) return result;
        result.push_back(unit);
      }
    }
    return result;
  }

  // Gathered copies go, unless they are used again soon or came for a later instruction.
  void FreeParamsAfter(size_t index) {
    if (needs_[index].empty()) return;
    const std::vector<int> reused = ReusedAfter(index);
    for (int u = 0; u < num_units(); ++u) {
      if (!live_[u] || ahead_[u] || std::ranges::count(reused, u) > 0) continue;
      live_[u] = false;
      writer_.Emit(Op::kFreeParam, u);
    }
  }

  // Live units that the next instruction needs, or a later one within the reuse distance.
  std::vector<int> ReusedAfter(size_t index) const {
    std::vector<int> reused;
    int64_t kept = 0;
    int64_t distance = 0;
    const int64_t most_distance = std::max<int64_t>(options_.max_reuse_elems, 1);
    const auto num_live = std::ranges::count(live_, true);
    for (size_t i = index + 1; i < computes_.size() && distance < most_distance; ++i) {
      for (const int unit : needs_[i]) {
        const bool known = std::ranges::count(reused, unit) > 0;
        if (live_[unit] && !known &&
            (distance == 0 || kept + Size(unit) <= options_.max_live_elems)) {
          reused.push_back(unit);
          kept += Size(unit);
        }
      }
      for (const int unit : needs_[i])
        distance += Size(unit);
      if (std::ssize(reused) == num_live) break;
    }
    return reused;
  }

  // Reduces the gradients that this backward has completed, if now is the time.
  void ReduceAfter(const Instruction& compute) {
    for (int u = num_units() - 1; u >= 0; --u) {
      if (plan_.units[u].trained && last_writer_[u] == compute.unit) Reduce(u, compute.micro_batch);
    }
    const int first = std::max(schedule_.first_unit, schedule_.first_trained);
    if (compute.unit == first) writer_.Flush(reduce_);
  }

  void Reduce(int unit, int micro_batch) {
    const bool last = micro_batch == options_.accumulation_steps - 1;
    const bool each = plan_.grad_home == Placement::kShard;
    // Gradients that rest whole and accumulate in another type.
    if (options_.fold_grads && !each) writer_.Emit(Op::kFoldGrad, unit);
    const bool moves = options_.world_size > 1 || plan_.optimizer_home == Placement::kShard;
    if (!options_.reduce_grads || !moves || !(last || each)) return;
    reduce_.like.accumulate = each && micro_batch > 0;
    writer_.Append(reduce_, unit, SliceElems(unit));
    if (reduce_.like.to == Placement::kShard) writer_.Emit(Op::kFreeGrad, unit);
  }

  void OptimizerStep() {
    writer_.WaitForAll();
    writer_.set_phase(Phase::kStep);
    for (int u = 0; u < num_units(); ++u) {
      if (plan_.units[u].trained && plan_.units[u].holders.size() > 1)
        writer_.Emit(Op::kSumTied, u);
    }
    writer_.Emit(Op::kNorm);
    const bool trains_any = !plan_.sub_groups.empty();  // Not a pipeline stage of frozen units.
    if (plan_.num_trust_ratios > 0 && trains_any) writer_.Emit(Op::kTrustRatios);
    for (int g = 0; !plan_.reduces_grads && g < static_cast<int>(plan_.sub_groups.size()); ++g)
      writer_.EmitSubGroup(Op::kAverageMomentum, g);
    gather_.like.collective =
        options_.gather_updated ? Collective::kAllGather : Collective::kBroadcasts;
    const int num_groups = static_cast<int>(plan_.sub_groups.size());
    for (int g = 0; g < num_groups; ++g) {
      const int unit = plan_.sub_groups[g].unit;
      Update(g);
      if (g + 1 == num_groups || plan_.sub_groups[g + 1].unit != unit) EndUpdate(unit);
    }
    writer_.Flush(gather_);
    for (const int g : buffer_owner_) {
      if (g >= 0) writer_.EmitSubGroup(Op::kAwaitState, g);
    }
    EndWriting();
    writer_.WaitForAll();
  }

  void Update(int sub_group) {
    const bool on_disk = plan_.sub_groups[sub_group].on_disk;
    if (on_disk) ReadStates(sub_group);
    writer_.EmitSubGroup(Op::kUpdate, sub_group);
    if (!on_disk) return;
    writer_.EmitSubGroup(Op::kWriteState, sub_group);
    if (options_.offload.pipeline_write) return;
    writer_.EmitSubGroup(Op::kAwaitState, sub_group);
    *std::ranges::find(buffer_owner_, sub_group) = -1;
  }

  // The sub-group's state is in host memory; that of the next ones, if they are to be read ahead,
  // begins to come as far as there are buffers for it.
  void ReadStates(int sub_group) {
    const OffloadOptions& offload = options_.offload;
    const int64_t position = std::ranges::find(on_disk_, sub_group) - on_disk_.begin();
    const int ahead = offload.pipeline_read
                          ? offload.num_state_buffers - 1 - (offload.pipeline_write ? 1 : 0)
                          : 0;
    const int64_t end = std::min<int64_t>(position + 1 + std::max(ahead, 0), std::ssize(on_disk_));
    for (; num_states_read_ < end; ++num_states_read_) {
      const int next = on_disk_[static_cast<size_t>(num_states_read_)];
      int& owner = buffer_owner_[static_cast<size_t>(num_states_read_) % buffer_owner_.size()];
      if (owner >= 0) writer_.EmitSubGroup(Op::kAwaitState, owner);
      writer_.EmitSubGroup(Op::kReadState, next);
      owner = next;
    }
    writer_.EmitSubGroup(Op::kAwaitState, sub_group);
  }

  void EndUpdate(int unit) {
    if (OnDisk(unit)) {
      EndWriting();
      writer_.Emit(Op::kWriteSlice, unit);
      slice_written_ = unit;
    }
    const bool moves = options_.world_size > 1 && plan_.optimizer_home == Placement::kShard;
    if (moves && !Sharded(unit)) writer_.Append(gather_, unit, SliceElems(unit));
  }

  void EndWriting() {
    if (slice_written_ < 0) return;
    writer_.Emit(Op::kAwaitSlice, slice_written_);
    slice_written_ = -1;
  }

  const std::vector<PlanUnit>& units_;
  const PlanOptions& options_;
  Plan plan_;
  PlanWriter writer_{plan_};
  BucketPool reduce_;
  BucketPool gather_;
  ScheduleOptions schedule_;
  std::vector<Instruction> computes_;
  std::vector<std::vector<int>> needs_;  // Per compute: the units that must be gathered for it.
  std::vector<int> last_writer_;   // Per unit: the unit whose backward completes its gradient here.
  std::vector<bool> live_;         // Gathered, or about to be.
  std::vector<bool> ahead_;        // Live, but not used since it was gathered.
  std::vector<bool> reading_;      // On its way from disk, or there.
  std::vector<int> on_disk_;       // Sub-groups whose state rests there.
  std::vector<int> buffer_owner_;  // Per host buffer: the sub-group that is in it, or -1.
  int64_t num_states_read_ = 0;    // Sub-groups on disk whose reading has begun.
  int slice_written_ = -1;         // The unit whose updated slice is on its way to disk.
};

}  // namespace

Plan BuildPlan(const std::vector<PlanUnit>& units, const PlanOptions& options) {
  return PlanBuilder(units, options).Build();
}

}  // namespace dsat::engine
