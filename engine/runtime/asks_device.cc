// Sorts instructions into those of the device and those of the host.
#include "engine/runtime/asks_device.h"

#include <algorithm>

namespace dsat::engine {

bool AsksDevice(const Instruction& i, const Plan& plan) {
  const auto on_device = [&](const SubGroup& g) {
    return plan.units[g.unit].reduced_grad_tier() == Tier::kDevice;
  };
  switch (i.op) {
    case Op::kLoadBatch:
    case Op::kForward:
    case Op::kRecompute:
    case Op::kBackward:
    case Op::kStoreInput:
    case Op::kFetchInput:
    case Op::kReceiveInput:
    case Op::kSendOutput:
    case Op::kReceiveGrad:
    case Op::kSendGrad:
    case Op::kSendOutputReceiveGrad:
    case Op::kSendGradReceiveInput:
    case Op::kPack:
    case Op::kWait:
    case Op::kFoldGrad:
    case Op::kSumTied:
    case Op::kNorm:
    case Op::kMeanLoss:
      return true;
    case Op::kTrustRatios:
      return std::ranges::any_of(plan.sub_groups, on_device);
    case Op::kAverageMomentum:
    case Op::kUpdate:
      return on_device(plan.sub_groups[i.sub_group]);
    default:
      return false;
  }
}

}  // namespace dsat::engine
