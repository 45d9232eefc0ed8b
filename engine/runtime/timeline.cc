// Estimates how long a step takes.
#include "engine/runtime/timeline.h"

#include <algorithm>
#include <utility>

#include "engine/runtime/engine_internals.h"
#include "engine/runtime/optimizer/optimizer.h"

namespace dsat::engine {
namespace {

constexpr double kMsPerSecond = 1e3;

double MsFor(int64_t amount, double per_second) {
  return per_second > 0 ? static_cast<double>(amount) / per_second * kMsPerSecond : 0;
}

}  // namespace

Timeline::Timeline(const Engine& engine, const Kernels& kernels, const DsConfig& config,
                   const Speeds& speeds)
    : engine_(engine),
      plan_(EngineInternals(engine).plan()),
      kernels_(kernels),
      config_(config),
      speeds_(speeds),
      counts_(CountsNow()),
      arrives_ms_(plan_.transfers.size()),
      state_done_ms_(plan_.sub_groups.size()),
      slice_done_ms_(plan_.units.size()) {}

Timeline::Counts Timeline::CountsNow() const {
  return {.flops = kernels_.flops(),
          .moved_bytes = kernels_.moved_bytes(),
          .tiers = kernels_.stream().tier_traffic(),
          .disk = EngineInternals(engine_).states().disk_traffic(),
          // With overlap it is another thread's to count; TransferMs knows what a transfer sends.
          .sent = plan_.overlap ? Traffic{} : engine_.traffic()};
}

void Timeline::Ran(const Instruction& instruction) {
  const Counts before = std::exchange(counts_, CountsNow());
  const Counts counts = {.flops = counts_.flops - before.flops,
                         .moved_bytes = counts_.moved_bytes - before.moved_bytes,
                         .tiers = counts_.tiers - before.tiers,
                         .disk = counts_.disk - before.disk,
                         .sent = counts_.sent - before.sent};
  const double before_ms = now_ms_;
  Compute(instruction, counts);
  Communicate(instruction, counts);
  UseDisk(instruction, counts);
  if (instruction.phase != Phase::kStep) time_.passes_ms += now_ms_ - before_ms;
}

void Timeline::Compute(const Instruction& instruction, const Counts& counts) {
  double compute_ms = MsFor(counts.flops, speeds_.flops);
  // UpdateMs counts the bytes that the update moves.
  if (instruction.phase != Phase::kStep)
    compute_ms += MsFor(counts.moved_bytes, speeds_.device_bytes);
  Spend(&StepTime::compute_ms, speeds_.compute_times * compute_ms);
  const int64_t copied_bytes = counts.tiers.to_host_bytes + counts.tiers.to_device_bytes;
  Spend(&StepTime::copy_ms, MsFor(copied_bytes, speeds_.copy_bytes));
  if (instruction.op == Op::kNorm) Spend(&StepTime::update_ms, speeds_.update_times * NormMs());
  if (instruction.op == Op::kUpdate) {
    Spend(&StepTime::update_ms,
          speeds_.update_times * UpdateMs(plan_.sub_groups[instruction.sub_group]));
  }
}

void Timeline::Communicate(const Instruction& instruction, const Counts& counts) {
  if (plan_.overlap && instruction.op == Op::kStart) {
    const double ms = TransferMs(plan_.transfers[instruction.transfer]);
    link_free_ms_ = std::max(link_free_ms_, now_ms_) + ms;
    time_.link_busy_ms += ms;
    arrives_ms_[instruction.transfer] = link_free_ms_;
  } else if (plan_.overlap && instruction.op == Op::kWait) {
    WaitUntil(&StepTime::communication_ms, arrives_ms_[instruction.transfer]);
  } else if (counts.sent.sent_bytes > 0) {  // A rank alone calls nobody.
    const int64_t num_calls = counts.sent.num_collectives + counts.sent.num_messages;
    const double ms = MsFor(counts.sent.sent_bytes, speeds_.link_bytes) +
                      static_cast<double>(num_calls) * speeds_.call_seconds * kMsPerSecond;
    time_.link_busy_ms += ms;
    Spend(&StepTime::communication_ms, ms);
  }
}

void Timeline::UseDisk(const Instruction& instruction, const Counts& counts) {
  const bool state = instruction.sub_group >= 0;
  double& done_ms =
      state ? state_done_ms_[instruction.sub_group] : slice_done_ms_[std::max(0, instruction.unit)];
  switch (instruction.op) {
    case Op::kReadSlice:
    case Op::kWriteSlice:
    case Op::kReadState:
    case Op::kWriteState: {
      const double ms = MsFor(counts.disk.read_bytes, speeds_.read_bytes) +
                        MsFor(counts.disk.written_bytes, speeds_.write_bytes);
      disk_free_ms_ = std::max(disk_free_ms_, now_ms_) + ms;
      time_.disk_busy_ms += ms;
      done_ms = disk_free_ms_;
      return;
    }
    case Op::kAwaitSlice:
    case Op::kAwaitState:
      return WaitUntil(&StepTime::disk_ms, done_ms);
    default:
      return;
  }
}

// The time follows from the bytes that a ring sends (process_group.h).
double Timeline::TransferMs(const Transfer& transfer) const {
  const bool reduces_all = transfer.collective == Collective::kAllReduce;
  const bool broadcasts = transfer.collective == Collective::kBroadcasts;
  const DType dtype = transfer.state == State::kParam
                          ? config_.dtype()
                          : config_.communication_dtype(plan_.world_size);
  const int64_t rows = (plan_.world_size - 1) * (reduces_all ? 2 : 1);
  if (rows == 0) return 0;
  return MsFor(rows * transfer.row_elems * BytesPerElem(dtype), speeds_.link_bytes) +
         (broadcasts ? plan_.world_size : 1) * speeds_.call_seconds * kMsPerSecond;
}

// Master copy and moments are read and written, the gradient read, the parameter written if the
// master copy is of another type.
double Timeline::UpdateMs(const SubGroup& group) const {
  const DType master = config_.master_dtype();
  const int64_t moments = NumMoments(config_.optimizer) * BytesPerElem(config_.moment_dtype());
  const int64_t elem_bytes = 2 * (BytesPerElem(master) + moments) +
                             BytesPerElem(config_.grad_dtype()) +
                             (config_.dtype() == master ? 0 : BytesPerElem(config_.dtype()));
  return MemoryMs(group, elem_bytes);
}

// Every gradient is read once.
double Timeline::NormMs() const {
  const int64_t elem_bytes = BytesPerElem(config_.grad_dtype());
  double ms = 0;
  for (const SubGroup& group : plan_.sub_groups)
    ms += MemoryMs(group, elem_bytes);
  return ms;
}

double Timeline::MemoryMs(const SubGroup& group, int64_t elem_bytes) const {
  const bool on_device = plan_.units[group.unit].reduced_grad_tier() == Tier::kDevice;
  return MsFor(group.num_elems * elem_bytes, on_device ? speeds_.device_bytes : speeds_.host_bytes);
}

void Timeline::Spend(double StepTime::*what, double ms) {
  now_ms_ += ms;
  time_.*what += ms;
}

void Timeline::WaitUntil(double StepTime::*what, double ms) {
  Spend(what, std::max(0.0, ms - now_ms_));
}

StepTime Timeline::time() const {
  StepTime time = time_;
  time.bubble_ms = time.passes_ms * (config_.pipeline.num_stages - 1) /
                   static_cast<double>(config_.batch.accumulation_steps);
  return time;
}

}  // namespace dsat::engine
