// Predicted = counted: what a run counts, rank by rank, is what Predict says.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/runtime/predict.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {

inline void ExpectPredicted(const Model& model, const DsConfig& config,
                            const std::vector<RankRun>& runs) {
  const int world_size = static_cast<int>(runs.size());
  for (int rank = 0; rank < world_size; ++rank) {
    const RankRun& run = runs[static_cast<size_t>(rank)];
    const Prediction predicted =
        Predict(model, config, SeqLenOf(model), rank, world_size, 1, {}, TestDeviceKind());
    EXPECT_EQ(predicted.peak_bytes, run.peak_bytes) << rank;
    EXPECT_EQ(predicted.state_bytes, run.state_bytes) << rank;
    EXPECT_EQ(predicted.host_peak_bytes, run.host_peak_bytes) << rank;
    EXPECT_EQ(predicted.step_flops, run.steps.back().flops) << rank;
    EXPECT_EQ(predicted.forward_flops, run.steps.back().forward_flops) << rank;
    EXPECT_EQ(predicted.step_traffic, run.step_traffic) << rank;
    EXPECT_EQ(predicted.tier_traffic, run.tier_traffic) << rank;
    EXPECT_EQ(predicted.disk_traffic, run.disk_traffic) << rank;
  }
}

// The same of a run whose last step is an update.
inline void ExpectPredicted(const Model& model, const DsConfig& config, int world_size) {
  ExpectPredicted(model, config, Train(model, config, world_size, NumStepsFor(config)));
}

// All ranks skip the same steps.
inline void ExpectSkips(const std::vector<RankRun>& runs, const std::string& skips) {
  for (const RankRun& run : runs)
    EXPECT_EQ(Skips(run), skips);
}

}  // namespace dsat::engine
