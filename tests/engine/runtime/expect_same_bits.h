// Compares the ends of two trainings that differ in where state is, not in what is computed.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "engine/config/ds_config.h"
#include "tests/engine/backend/relative_distance.h"
#include "tests/engine/backend/test_device.h"

namespace dsat::engine {

// Expects that a training by `config` has ended with the parameters of one whose optimizer works on
// the device. If the device is a GPU and this one's works on the host, other kernels have made the
// updates, which agree to a few units of the last place. Lion's steps are signs: where the sum is
// next to nothing, such a unit turns one round.
inline void ExpectSameBits(const std::vector<float>& params, const std::vector<float>& expected,
                           const DsConfig& config) {
  const bool other_kernels =
      TestDeviceKind() == DeviceKind::kCuda && config.zero.offload_optimizer.tier != Tier::kDevice;
  if (!other_kernels) {
    EXPECT_EQ(params, expected);
    return;
  }
  ASSERT_EQ(params.size(), expected.size());
  const bool coarse = config.dtype() != DType::kF32 || config.optimizer.type == "lion";
  EXPECT_LT(RelativeDistance(params, expected), coarse ? 2e-2 : 1e-5);
}

}  // namespace dsat::engine
