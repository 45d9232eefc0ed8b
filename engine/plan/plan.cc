// Plans as text.
#include "engine/plan/plan.h"

#include <fmt/format.h>

#include <array>

namespace dsat::engine {
namespace {

const char* Name(Collective collective) {
  constexpr std::array kNames = {"all-reduce", "reduce-scatter", "all-gather"};
  return kNames[static_cast<size_t>(collective)];
}

const char* Name(Placement placement) {
  constexpr std::array kNames = {"replicate", "shard", "partial"};
  return kNames[static_cast<size_t>(placement)];
}

// Ends a line of ToString(Plan): what takes time.
bool EndsLine(Op op) {
  return op == Op::kForward || op == Op::kBackward || op == Op::kWait || op == Op::kNorm ||
         op == Op::kUpdate || op == Op::kMeanLoss;
}

}  // namespace

std::string ToString(const Instruction& i) {
  switch (i.op) {
    case Op::kLoadBatch:
      return fmt::format("load({})", i.micro_batch);
    case Op::kForward:
      return fmt::format("forward({}.{})", i.micro_batch, i.unit);
    case Op::kBackward:
      return fmt::format("backward({}.{})", i.micro_batch, i.unit);
    case Op::kPack:
      return fmt::format("pack(t{},{})", i.transfer, i.unit);
    case Op::kStart:
      return fmt::format("start(t{})", i.transfer);
    case Op::kWait:
      return fmt::format("wait(t{})", i.transfer);
    case Op::kFreeParam:
      return fmt::format("free_param({})", i.unit);
    case Op::kFreeGrad:
      return fmt::format("free_grad({})", i.unit);
    case Op::kNorm:
      return "norm";
    case Op::kUpdate:
      return fmt::format("update({})", i.unit);
    case Op::kMeanLoss:
      return "mean_loss";
  }
  return "";
}

std::string ToString(const Transfer& transfer, int index) {
  std::string text =
      fmt::format("t{}: {} {} to {}, bucket {}, rows of {}:", index, Name(transfer.collective),
                  transfer.state == State::kParam ? "param" : "grad", Name(transfer.to),
                  transfer.bucket, transfer.row_elems);
  const char* separator = " ";
  for (const Segment& segment : transfer.segments) {
    text += fmt::format("{}unit {} [{}, +{})", separator, segment.unit, segment.offset,
                        segment.num_elems);
    separator = ", ";
  }
  return text;
}

std::string ToString(const Plan& plan) {
  std::string text;
  for (size_t i = 0; i < plan.transfers.size(); ++i) {
    text += ToString(plan.transfers[i], static_cast<int>(i)) + "\n";
  }
  for (const Instruction& instruction : plan.instructions) {
    text += ToString(instruction) + (EndsLine(instruction.op) ? "\n" : " ");
  }
  return text;
}

}  // namespace dsat::engine
