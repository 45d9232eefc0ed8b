// Streams beside each other: what overlaps trains to the same bits as what does not. Little enough
// for an emulated GPU, on which work is done as late as it may be: a hand-off between threads that
// is missing shows here each time.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

struct Case {
  int num_ranks;
  int stage;
  Tier optimizer;
  Tier param;
};

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const auto tier = [](Tier t) { return t == Tier::kDevice ? "Device" : "Host"; };
  return fmt::format("Ranks{}Stage{}Optimizer{}Param{}", info.param.num_ranks, info.param.stage,
                     tier(info.param.optimizer), tier(info.param.param));
}

DsConfig ConfigOf(const Case& c) {
  DsConfig config = TinyConfig(c.stage, c.num_ranks, 2);
  config.batch = {
      .train_batch_size = 4, .micro_batch_size = 2 / c.num_ranks, .accumulation_steps = 2};
  config.zero.overlap_comm = true;
  config.zero.reduce_bucket_size = 512;  // Several buckets are under way.
  config.zero.stage3_prefetch_bucket_size = 4096;
  config.zero.offload_optimizer.tier = c.optimizer;
  config.zero.offload_param.tier = c.param;
  return config;
}

class OverlapTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Homes, OverlapTest,
                         testing::Values(Case{1, 2, Tier::kHost, Tier::kDevice},
                                         Case{1, 3, Tier::kHost, Tier::kHost},
                                         Case{2, 1, Tier::kDevice, Tier::kDevice},
                                         Case{2, 2, Tier::kHost, Tier::kDevice},
                                         Case{2, 3, Tier::kDevice, Tier::kDevice},
                                         Case{2, 3, Tier::kHost, Tier::kHost}),
                         NameOf);

void ExpectTheSameBits(const DsConfig& config, int num_ranks) {
  const Model model = TinyMlp();
  DsConfig in_turn = config;
  in_turn.zero.overlap_comm = false;
  const auto alone = Train(model, in_turn, num_ranks, 2);
  const auto beside = Train(model, config, num_ranks, 2);
  for (size_t rank = 0; rank < alone.size(); ++rank) {
    for (size_t step = 0; step < 2; ++step)
      EXPECT_EQ(beside[rank].steps[step].loss, alone[rank].steps[step].loss) << step;
    EXPECT_EQ(beside[rank].params, alone[rank].params) << rank;
    EXPECT_EQ(beside[rank].tier_traffic, alone[rank].tier_traffic) << rank;
  }
}

TEST_P(OverlapTest, GivesTheSameBits) {
  ExpectTheSameBits(ConfigOf(GetParam()), GetParam().num_ranks);
}

TEST(OverlapInAPipelineTest, GivesTheSameBits) {
  DsConfig config = ConfigOf({2, 1, Tier::kDevice, Tier::kDevice});
  config.pipeline.num_stages = 2;
  ExpectTheSameBits(config, 4);
}

}  // namespace
}  // namespace dsat::engine
