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

// The numbers of an instruction behind its name.
constexpr char kNothing[] = "";
constexpr char kMicroBatch[] = "({micro_batch})";
constexpr char kMicroBatchAndUnit[] = "({micro_batch}.{unit})";
constexpr char kTwoMicroBatches[] = "({sent_micro_batch}.{unit},{micro_batch}.{unit})";
constexpr char kUnit[] = "({unit})";
constexpr char kTransfer[] = "(t{transfer}{of_unit})";
constexpr char kSubGroup[] = "({sub_group})";

struct OpTraits {
  const char* name;
  const char* numbers;
  bool asks_device;      // As AsksDevice; of work on a sub-group, if its gradients rest there.
  int stage_offset = 0;  // As StageOffset.
};

// By Op.
constexpr OpTraits kOps[] = {
    {"load", kMicroBatch, true},
    {"forward", kMicroBatchAndUnit, true},
    {"recompute", kMicroBatchAndUnit, true},
    {"backward", kMicroBatchAndUnit, true},
    {"drop_saved", kMicroBatchAndUnit, false},
    {"drop_input", kMicroBatchAndUnit, false},
    {"drop_grad", kMicroBatchAndUnit, false},
    {"store_input", kMicroBatchAndUnit, true},
    {"fetch_input", kMicroBatchAndUnit, true},
    {"receive_input", kMicroBatchAndUnit, true, -1},
    {"send_output", kMicroBatchAndUnit, true, 1},
    {"receive_grad", kMicroBatchAndUnit, true, 1},
    {"send_grad", kMicroBatchAndUnit, true, -1},
    {"send_output_receive_grad", kTwoMicroBatches, true, 1},
    {"send_grad_receive_input", kTwoMicroBatches, true, -1},
    {"pack", kTransfer, true},
    {"start", kTransfer, false},
    {"wait", kTransfer, true},
    {"free_param", kUnit, false},
    {"read_slice", kUnit, false},
    {"write_slice", kUnit, false},
    {"await_slice", kUnit, false},
    {"free_slice", kUnit, false},
    {"fold_grad", kUnit, true},
    {"free_grad", kUnit, false},
    {"sum_tied", kUnit, true},
    {"norm", kNothing, true},
    {"trust_ratios", kNothing, true},
    {"average_momentum", kSubGroup, true},
    {"read_state", kSubGroup, false},
    {"update", kSubGroup, true},
    {"write_state", kSubGroup, false},
    {"await_state", kSubGroup, false},
    {"mean_loss", kNothing, true},
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
  const std::string of_unit = i.unit < 0 ? "" : fmt::format(",{}", i.unit);
  return text.name + fmt::format(fmt::runtime(text.numbers), fmt::arg("micro_batch", i.micro_batch),
                                 fmt::arg("sent_micro_batch", i.sent_micro_batch),
                                 fmt::arg("unit", i.unit), fmt::arg("transfer", i.transfer),
                                 fmt::arg("of_unit", of_unit), fmt::arg("sub_group", i.sub_group));
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

}  // namespace dsat::engine
