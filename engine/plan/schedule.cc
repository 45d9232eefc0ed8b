// Writes the list of what one pipeline stage computes in one step.
#include "engine/plan/schedule.h"

#include <algorithm>

#include "base/error.h"

namespace dsat::engine {
namespace {

class Scheduler {
 public:
  explicit Scheduler(const ScheduleOptions& options) : options_(options) {}
  std::vector<Instruction> Build();

 private:
  void Forward(int micro_batch);
  void DropAfterForward(int micro_batch, int unit);
  void Backward(int micro_batch);
  void Recompute(int micro_batch, int begin, int end);
  void Load(int micro_batch);
  void Receive(Op op, int micro_batch, int unit);
  void Emit(Op op, int micro_batch, int unit) { list_.push_back({op, phase_, unit, micro_batch}); }

  bool has_first() const { return options_.first_unit == 0; }
  bool has_last() const { return options_.end_unit == options_.num_units; }
  // Units [first_backward(), end_unit) have a backward here.
  int first_backward() const { return std::max(options_.first_unit, options_.first_trained); }
  // Units [first_backward(), end_checkpointed()) are computed again.
  int end_checkpointed() const {
    return options_.checkpoint_interval > 0 ? options_.end_unit - (has_last() ? 1 : 0) : 0;
  }
  // The unit whose input is kept for this one's recomputation.
  int SegmentBegin(int unit) const {
    const auto interval = static_cast<int>(options_.checkpoint_interval);
    return unit - (unit - first_backward()) % interval;
  }

  const ScheduleOptions& options_;
  Phase phase_ = Phase::kForward;
  int loaded_ = -1;  // The micro-batch that was loaded last.
  std::vector<Instruction> list_;
};

void Scheduler::Load(int micro_batch) {
  if (loaded_ == micro_batch) return;
  loaded_ = micro_batch;
  Emit(Op::kLoadBatch, micro_batch, -1);
}

// If nothing was computed since something was sent to the same stage, the two messages cross, and
// one instruction does both: before the load, for which that stage need not wait. But with fewer
// micro-batches than stages from here on, the stage after has every input before its first
// backward.
void Scheduler::Receive(Op op, int micro_batch, int unit) {
  const bool grad = op == Op::kReceiveGrad;
  const auto is_no_load = [](const Instruction& i) { return i.op != Op::kLoadBatch; };
  const auto last = std::find_if(list_.rbegin(), list_.rend(), is_no_load);
  const bool sent = last != list_.rend() && last->op == (grad ? Op::kSendOutput : Op::kSendGrad);
  const bool alternates_after = options_.num_micro_batches >= options_.num_stages - options_.stage;
  if (!sent || (grad && !alternates_after)) return Emit(op, micro_batch, unit);
  *last = {.op = grad ? Op::kSendOutputReceiveGrad : Op::kSendGradReceiveInput,
           .phase = phase_,
           .unit = unit,
           .micro_batch = micro_batch,
           .sent_micro_batch = last->micro_batch};
}

void Scheduler::Forward(int micro_batch) {
  phase_ = Phase::kForward;
  Load(micro_batch);
  if (!has_first()) Receive(Op::kReceiveInput, micro_batch, options_.first_unit);
  for (int u = options_.first_unit; u < options_.end_unit; ++u) {
    Emit(Op::kForward, micro_batch, u);
    DropAfterForward(micro_batch, u);
  }
  if (!has_last()) Emit(Op::kSendOutput, micro_batch, options_.end_unit - 1);
}

void Scheduler::DropAfterForward(int micro_batch, int unit) {
  const bool no_backward = !options_.backward || unit < first_backward();
  const bool recomputed = !no_backward && unit < end_checkpointed();
  if (no_backward || recomputed) Emit(Op::kDropSaved, micro_batch, unit);
  if (unit == 0) return;  // Its input is the batch.
  if (no_backward || (recomputed && SegmentBegin(unit) != unit)) {
    Emit(Op::kDropInput, micro_batch, unit);
  } else if (recomputed && options_.checkpoints_on_host) {
    Emit(Op::kStoreInput, micro_batch, unit);
  }
}

void Scheduler::Backward(int micro_batch) {
  phase_ = Phase::kBackward;
  if (options_.end_unit <= first_backward()) return;
  Load(micro_batch);
  if (!has_last()) Receive(Op::kReceiveGrad, micro_batch, options_.end_unit - 1);
  int recomputed_from = options_.end_unit;
  for (int u = options_.end_unit - 1; u >= first_backward(); --u) {
    if (u < end_checkpointed() && u < recomputed_from) {
      recomputed_from = SegmentBegin(u);
      Recompute(micro_batch, recomputed_from, u + 1);
    }
    Emit(Op::kBackward, micro_batch, u);
  }
  if (options_.first_trained < options_.first_unit) {
    Emit(Op::kSendGrad, micro_batch, options_.first_unit);
  } else if (first_backward() > 0) {
    Emit(Op::kDropGrad, micro_batch, first_backward());
  }
}

void Scheduler::Recompute(int micro_batch, int begin, int end) {
  if (options_.checkpoints_on_host && begin > 0) Emit(Op::kFetchInput, micro_batch, begin);
  for (int u = begin; u < end; ++u)
    Emit(Op::kRecompute, micro_batch, u);
  Emit(Op::kDropInput, micro_batch, end);  // It was made again, too, and has served.
}

std::vector<Instruction> Scheduler::Build() {
  const auto num_micro_batches = static_cast<int>(options_.num_micro_batches);
  const int ahead = options_.backward ? NumInFlight(options_) - 1 : 0;
  for (int m = 0; m < num_micro_batches + ahead; ++m) {
    if (m < num_micro_batches) Forward(m);
    if (m >= ahead && options_.backward) Backward(m - ahead);
  }
  return std::move(list_);
}

}  // namespace

std::vector<Instruction> Schedule(const ScheduleOptions& options) {
  DSAT_CHECK(0 <= options.first_unit && options.first_unit < options.end_unit &&
             options.end_unit <= options.num_units && options.num_micro_batches > 0);
  return Scheduler(options).Build();
}

int NumInFlight(const ScheduleOptions& options) {
  return static_cast<int>(
      std::min<int64_t>(options.num_stages - options.stage, options.num_micro_batches));
}

}  // namespace dsat::engine
