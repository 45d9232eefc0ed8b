// Plans as text, and the facts about each instruction.
#include "engine/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace dsat::engine {
namespace {

const char* Name(Placement placement) {
  constexpr std::array kNames = {"replicate", "shard", "partial"};
  return kNames[static_cast<size_t>(placement)];
}

// The meaning of an instruction's number in parentheses.
enum class Of : uint8_t {
  kNothing,
  kMicroBatch,
  kMicroBatchAndUnit,
  kTwoMicroBatches,  // And the unit of both.
  kUnit,
  kTransfer,
  kSubGroup,
};

struct OpTraits {
  const char* name;
  Of of;
  bool ends_line;        // It takes time, so that it ends a line of ToString(Plan).
  bool asks_device;      // As AsksDevice; of work on a sub-group, if its gradients rest there.
  int stage_offset = 0;  // As StageOffset.
};

// By Op.
constexpr OpTraits kOps[] = {
    {"load", Of::kMicroBatch, false, true},
    {"forward", Of::kMicroBatchAndUnit, true, true},
    {"recompute", Of::kMicroBatchAndUnit, true, true},
    {"backward", Of::kMicroBatchAndUnit, true, true},
    {"drop_saved", Of::kMicroBatchAndUnit, false, false},
    {"drop_input", Of::kMicroBatchAndUnit, false, false},
    {"drop_grad", Of::kMicroBatchAndUnit, false, false},
    {"store_input", Of::kMicroBatchAndUnit, false, true},
    {"fetch_input", Of::kMicroBatchAndUnit, false, true},
    {"receive_input", Of::kMicroBatchAndUnit, true, true, -1},
    {"send_output", Of::kMicroBatchAndUnit, true, true, 1},
    {"receive_grad", Of::kMicroBatchAndUnit, true, true, 1},
    {"send_grad", Of::kMicroBatchAndUnit, true, true, -1},
    {"send_output_receive_grad", Of::kTwoMicroBatches, true, true, 1},
    {"send_grad_receive_input", Of::kTwoMicroBatches, true, true, -1},
    {"pack", Of::kTransfer, false, true},
    {"start", Of::kTransfer, false, false},
    {"wait", Of::kTransfer, true, true},
    {"free_param", Of::kUnit, false, false},
    {"read_slice", Of::kUnit, false, false},
    {"write_slice", Of::kUnit, false, false},
    {"await_slice", Of::kUnit, true, false},
    {"free_slice", Of::kUnit, false, false},
    {"fold_grad", Of::kUnit, false, true},
    {"free_grad", Of::kUnit, false, false},
    {"sum_tied", Of::kUnit, true, true},
    {"norm", Of::kNothing, true, true},
    {"trust_ratios", Of::kNothing, true, true},
    {"average_momentum", Of::kSubGroup, true, true},
    {"read_state", Of::kSubGroup, false, false},
    {"update", Of::kSubGroup, true, true},
    {"write_state", Of::kSubGroup, false, false},
    {"await_state", Of::kSubGroup, true, false},
    {"mean_loss", Of::kNothing, true, true},
};

const OpTraits& TraitsOf(Op op) {
  return kOps[static_cast<size_t>(op)];
}

}  // namespace

int StageOffset(Op op) {
  return TraitsOf(op).stage_offset;
}

bool AsksDevice(const Instruction& i, const Plan& plan) {
  const auto on_device = [&](const SubGroup& group) {
    return plan.units[group.unit].reduced_grad_tier() == Tier::kDevice;
  };
  if (i.op == Op::kTrustRatios) return std::ranges::any_of(plan.sub_groups, on_device);
  if (i.op == Op::kAverageMomentum || i.op == Op::kUpdate)
    return on_device(plan.sub_groups[i.sub_group]);
  return TraitsOf(i.op).asks_device;
}

const char* Name(Op op) {
  return TraitsOf(op).name;
}

const char* Name(Collective collective) {
  constexpr std::array kNames = {"all-reduce", "reduce-scatter", "all-gather", "broadcasts",
                                 "all-to-all"};
  return kNames[static_cast<size_t>(collective)];
}

const char* Name(Phase phase) {
  constexpr std::array kNames = {"forward", "backward", "step"};
  return kNames[static_cast<size_t>(phase)];
}

std::vector<CollectiveCall> CallsOf(const Plan& plan, const Instruction& i) {
  using Elem = CollectiveCall::Elem;
  const int ranks = plan.world_size;
  const bool shard = plan.optimizer_home == Placement::kShard;
  switch (i.op) {
    case Op::kStart: {
      const Transfer& transfer = plan.transfers[i.transfer];
      const CollectiveCall call = {
          .collective = transfer.collective,
          .elem = transfer.state == State::kParam ? Elem::kParam : Elem::kGrad,
          .row_elems = transfer.row_elems};
      const bool broadcasts = transfer.collective == Collective::kBroadcasts;
      return std::vector<CollectiveCall>(broadcasts ? static_cast<size_t>(ranks) : 1, call);
    }
    case Op::kSumTied: {
      const UnitPlan& unit = plan.units[i.unit];
      const int64_t num_elems = shard ? unit.num_elems / ranks : unit.num_elems;
      return {{Collective::kAllReduce, CollectiveCall::Group::kTied, Elem::kGrad,
               SummedRowElems(num_elems, static_cast<int>(unit.holders.size()))}};
    }
    case Op::kTrustRatios:
      // Without sharding every rank has all of the numbers.
      if (!shard || ranks == 1) return {};
      return {{.collective = Collective::kAllReduce,
               .row_elems = SummedRowElems(2 * plan.num_trust_ratios, ranks)}};
    case Op::kAverageMomentum: {
      if (ranks == 1) return {};
      CollectiveCall call = {
          .collective = Collective::kAllToAll,
          .elem = Elem::kByte,
          .row_elems = CompressedRowBytes(plan.sub_groups[i.sub_group].num_elems, ranks)};
      std::vector<CollectiveCall> calls = {call};
      call.collective = Collective::kAllGather;
      calls.push_back(call);
      return calls;
    }
    default:
      return {};
  }
}

std::string ToString(const Instruction& i) {
  const OpTraits& text = TraitsOf(i.op);
  switch (text.of) {
    case Of::kNothing:
      return text.name;
    case Of::kMicroBatch:
      return fmt::format("{}({})", text.name, i.micro_batch);
    case Of::kMicroBatchAndUnit:
      return fmt::format("{}({}.{})", text.name, i.micro_batch, i.unit);
    case Of::kTwoMicroBatches:
      return fmt::format("{}({}.{},{}.{})", text.name, i.sent_micro_batch, i.unit, i.micro_batch,
                         i.unit);
    case Of::kUnit:
      return fmt::format("{}({})", text.name, i.unit);
    case Of::kTransfer:
      if (i.unit < 0) return fmt::format("{}(t{})", text.name, i.transfer);
      return fmt::format("{}(t{},{})", text.name, i.transfer, i.unit);
    case Of::kSubGroup:
      return fmt::format("{}({})", text.name, i.sub_group);
  }
  return "";
}

std::string ToString(const Transfer& transfer) {
  std::string text = fmt::format("{} {} to {}, bucket {}, rows of {}:", Name(transfer.collective),
                                 transfer.state == State::kParam ? "param" : "grad",
                                 Name(transfer.to), transfer.bucket, transfer.row_elems);
  const char* separator = " ";
  for (const Segment& segment : transfer.segments) {
    text += fmt::format("{}unit {} [{}, +{})", separator, segment.unit, segment.offset,
                        segment.num_elems);
    separator = ", ";
  }
  return text;
}

std::string ToString(const Transfer& transfer, int index) {
  return fmt::format("t{}: {}", index, ToString(transfer));
}

std::string ToString(const Plan& plan) {
  std::string text;
  for (size_t i = 0; i < plan.transfers.size(); ++i) {
    text += ToString(plan.transfers[i], static_cast<int>(i)) + "\n";
  }
  for (const Instruction& instruction : plan.instructions) {
    text += ToString(instruction) + (TraitsOf(instruction.op).ends_line ? "\n" : " ");
  }
  return text;
}

}  // namespace dsat::engine
