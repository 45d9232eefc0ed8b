// Where model state is stored: the ZeRO stages as a table of four rows (Rajbhandari et al. 2020,
// section 5), and the tiers of ZeRO-Offload and ZeRO-Infinity (Ren et al. 2021, Rajbhandari et al.
// 2021).
//
// Nothing else in the engine knows a stage number. Offload changes only the tier of a home.
#pragma once

#include <cstdint>

namespace dsat::engine {

// How a tensor is distributed over the ranks (DTensor's terms).
enum class Placement : uint8_t {
  kReplicate,  // Every rank holds the whole, equal everywhere.
  kShard,      // Rank r holds the r-th of P equal slices.
  kPartial,    // Every rank holds a whole-size addend; the value is their sum.
};

// Where its bytes are stored.
enum class Tier : uint8_t { kDevice, kHost, kNvme };

struct Home {
  Placement placement = Placement::kReplicate;
  Tier tier = Tier::kDevice;
  bool operator==(const Home&) const = default;
};

struct StateHomes {
  Home param;
  // Between the micro-batches of one step: whole gradients on the device, or, where every
  // micro-batch is reduced, slices on the tier of reduced gradients.
  Home grad;
  Home optimizer;
};

// Where gradients rest from their reduction to the update, which runs there: with the optimizer
// state, but never on disk.
constexpr Tier ReducedGradTier(Tier optimizer_tier) {
  return optimizer_tier == Tier::kDevice ? Tier::kDevice : Tier::kHost;
}

// REQUIRES: stage in [0, 3].
constexpr StateHomes ZeroStageHomes(int stage, Tier optimizer_tier = Tier::kDevice,
                                    Tier param_tier = Tier::kDevice) {
  using enum Placement;
  return {
      .param = {stage >= 3 ? kShard : kReplicate, param_tier},
      .grad = {stage >= 2 ? kShard : kPartial,
               stage >= 2 ? ReducedGradTier(optimizer_tier) : Tier::kDevice},
      .optimizer = {stage >= 1 ? kShard : kReplicate, optimizer_tier},
  };
}

}  // namespace dsat::engine
