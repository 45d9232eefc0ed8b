// Plans: exact instruction sequences of small cases, and laws that every plan obeys.
#include "engine/plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "engine/plan/build_plan.h"
#include "tests/engine/plan/plan_text.h"

namespace dsat::engine {
namespace {

// Two ranks: padded to 32 elements.
const std::vector<PlanUnit> kTwoUnits = {
    {.num_elems = 64, .largest_param = 64, .borrows = {}, .frozen = false},
    {.num_elems = 128, .largest_param = 100, .borrows = {}, .frozen = false}};
// An embedding, a block, and a head without parameters of its own that borrows the embedding.
const std::vector<PlanUnit> kTied = {
    {.num_elems = 64, .largest_param = 64, .borrows = {}, .frozen = false},
    {.num_elems = 128, .largest_param = 100, .borrows = {}, .frozen = false},
    {.num_elems = 0, .largest_param = 0, .borrows = {0}, .frozen = false}};

PlanOptions Options(int stage, int world_size, int64_t accumulation_steps = 1) {
  PlanOptions options;
  options.homes = ZeroStageHomes(stage);
  options.world_size = world_size;
  options.accumulation_steps = accumulation_steps;
  return options;
}

std::string Text(const Plan& plan) {
  std::string text;
  for (const Instruction& i : plan.instructions) {
    if (!text.empty()) text += " ";
    text += ToString(i);
  }
  return text;
}

std::vector<std::string> Transfers(const Plan& plan) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < plan.transfers.size(); ++i) {
    lines.push_back(fmt::format("t{}: {}", i, ToString(plan.transfers[i])));
  }
  return lines;
}

int64_t SentElems(const Plan& plan) {
  int64_t sum = 0;
  for (const Transfer& transfer : plan.transfers) {
    const int passes = transfer.collective == Collective::kAllReduce ? 2 : 1;
    sum += passes * (plan.world_size - 1) * transfer.row_elems;
  }
  return sum;
}

TEST(PlanTest, OneRankSendsNothingAtAnyStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Plan plan = BuildPlan(kTwoUnits, Options(stage, 1, 2));
    EXPECT_EQ(Text(plan),
              "load(0) forward(0.0) forward(0.1) backward(0.1) backward(0.0) "
              "load(1) forward(1.0) forward(1.1) backward(1.1) backward(1.0) "
              "norm update(0) update(1) mean_loss");
    EXPECT_TRUE(plan.transfers.empty());
    EXPECT_THAT(plan.bucket_row_elems, testing::Each(0));
  }
}

TEST(PlanTest, StageZeroReducesAtTheBoundaryIntoWholeGradients) {
  const Plan plan = BuildPlan(kTwoUnits, Options(0, 2, 2));
  EXPECT_EQ(Text(plan),
            "load(0) forward(0.0) forward(0.1) backward(0.1) backward(0.0) "
            "load(1) forward(1.0) forward(1.1) backward(1.1) pack(t0,1) backward(1.0) pack(t0,0) "
            "start(t0) wait(t0) norm update(0) update(1) mean_loss");
  EXPECT_THAT(Transfers(plan),
              testing::ElementsAre("t0: all-reduce grad to replicate, bucket 0, rows of 96: "
                                   "unit 1 [0, +64), unit 0 [0, +32)"));
}

TEST(PlanTest, StageOneGathersParametersAfterTheUpdate) {
  const Plan plan = BuildPlan(kTwoUnits, Options(1, 2));
  EXPECT_EQ(Text(plan),
            "load(0) forward(0.0) forward(0.1) backward(0.1) pack(t0,1) free_grad(1) "
            "backward(0.0) pack(t0,0) free_grad(0) start(t0) wait(t0) norm "
            "update(0) pack(t1,0) update(1) pack(t1,1) start(t1) wait(t1) mean_loss");
  EXPECT_THAT(Transfers(plan),
              testing::ElementsAre("t0: reduce-scatter grad to shard, bucket 0, rows of 96: "
                                   "unit 1 [0, +64), unit 0 [0, +32)",
                                   "t1: all-gather param to replicate, bucket 1, rows of 96: "
                                   "unit 0 [0, +32), unit 1 [0, +64)"));
}

TEST(PlanTest, StageTwoReducesAfterEveryMicroBatch) {
  const Plan plan = BuildPlan(kTwoUnits, Options(2, 2, 2));
  EXPECT_EQ(Text(plan),
            "load(0) forward(0.0) forward(0.1) backward(0.1) pack(t0,1) free_grad(1) "
            "backward(0.0) pack(t0,0) free_grad(0) start(t0) wait(t0) "
            "load(1) forward(1.0) forward(1.1) backward(1.1) pack(t1,1) free_grad(1) "
            "backward(1.0) pack(t1,0) free_grad(0) start(t1) wait(t1) "
            "norm update(0) pack(t2,0) update(1) pack(t2,1) start(t2) wait(t2) mean_loss");
}

TEST(PlanTest, StageThreeGathersAroundForwardAndBackward) {
  const Plan plan = BuildPlan(kTwoUnits, Options(3, 2));
  EXPECT_EQ(Text(plan),
            "load(0) pack(t0,0) start(t0) wait(t0) forward(0.0) free_param(0) "
            "pack(t1,1) start(t1) wait(t1) forward(0.1) backward(0.1) free_param(1) "
            "pack(t2,1) free_grad(1) pack(t3,0) start(t3) wait(t3) backward(0.0) free_param(0) "
            "pack(t2,0) free_grad(0) start(t2) wait(t2) norm update(0) update(1) mean_loss");
}

TEST(PlanTest, ABorrowedUnitIsGatheredForItsBorrowerAndReducedOnce) {
  const Plan plan = BuildPlan(kTied, Options(3, 2));
  EXPECT_EQ(Text(plan),
            "load(0) pack(t0,0) start(t0) wait(t0) forward(0.0) free_param(0) "
            "pack(t1,1) start(t1) wait(t1) forward(0.1) free_param(1) "
            "pack(t2,0) start(t2) wait(t2) forward(0.2) backward(0.2) free_param(0) "
            "pack(t3,1) start(t3) wait(t3) backward(0.1) free_param(1) pack(t4,1) free_grad(1) "
            "pack(t5,0) start(t5) wait(t5) backward(0.0) free_param(0) pack(t4,0) free_grad(0) "
            "start(t4) wait(t4) norm update(0) update(1) mean_loss");
}

TEST(PlanTest, ASmallBucketCutsUnitsIntoSeveralCalls) {
  PlanOptions options = Options(2, 2);
  options.reduce_bucket_elems = 96;  // Rows of 48.
  options.gather_bucket_elems = 1;   // At least one aligned slice: rows of 16.
  const Plan plan = BuildPlan(kTwoUnits, options);
  EXPECT_THAT(Transfers(plan),
              testing::ElementsAre(
                  "t0: reduce-scatter grad to shard, bucket 0, rows of 48: unit 1 [0, +48)",
                  "t1: reduce-scatter grad to shard, bucket 0, rows of 48: "
                  "unit 1 [48, +16), unit 0 [0, +32)",
                  "t2: all-gather param to replicate, bucket 1, rows of 16: unit 0 [0, +16)",
                  "t3: all-gather param to replicate, bucket 1, rows of 16: unit 0 [16, +16)",
                  "t4: all-gather param to replicate, bucket 1, rows of 16: unit 1 [0, +16)",
                  "t5: all-gather param to replicate, bucket 1, rows of 16: unit 1 [16, +16)",
                  "t6: all-gather param to replicate, bucket 1, rows of 16: unit 1 [32, +16)",
                  "t7: all-gather param to replicate, bucket 1, rows of 16: unit 1 [48, +16)"));
  EXPECT_THAT(plan.bucket_row_elems, testing::ElementsAre(48, 16));
}

TEST(PlanTest, WithoutContiguousGradientsEveryUnitIsReducedByItself) {
  PlanOptions options = Options(2, 2);
  options.share_reduce_buckets = false;
  const Plan plan = BuildPlan(kTwoUnits, options);
  ASSERT_EQ(plan.transfers.size(), 3u);
  EXPECT_EQ(plan.transfers[0].segments, (std::vector<Segment>{{1, 0, 64}}));
  EXPECT_EQ(plan.transfers[1].segments, (std::vector<Segment>{{0, 0, 32}}));
  EXPECT_EQ(plan.bucket_row_elems[0], 64);  // The largest unit, not the sum.
}

TEST(PlanTest, WithoutReduceScatterGradientsAreAllReducedAtTwiceTheTraffic) {
  PlanOptions options = Options(2, 2);
  options.reduce_scatter = false;
  const Plan plan = BuildPlan(kTwoUnits, options);
  EXPECT_EQ(plan.transfers[0].collective, Collective::kAllReduce);
  EXPECT_EQ(plan.transfers[0].to, Placement::kShard);
  EXPECT_EQ(SentElems(plan), 192 + 96);
}

TEST(PlanTest, OverlapComputesBetweenStartAndWaitInTwoBuckets) {
  PlanOptions options = Options(2, 2);
  options.overlap = true;
  options.reduce_bucket_elems = 128;
  const Plan plan = BuildPlan(kTwoUnits, options);
  EXPECT_EQ(Text(plan),
            "load(0) forward(0.0) forward(0.1) backward(0.1) pack(t0,1) start(t0) free_grad(1) "
            "backward(0.0) pack(t1,0) free_grad(0) start(t1) wait(t0) wait(t1) norm "
            "update(0) pack(t2,0) update(1) pack(t2,1) start(t2) wait(t2) mean_loss");
  EXPECT_THAT(plan.bucket_row_elems, testing::ElementsAre(64, 32, 96, 0));
}

TEST(PlanTest, PrefetchWithOverlapStartsTheNextGatherBeforeComputing) {
  PlanOptions options = Options(3, 2);
  options.overlap = true;
  options.prefetch_elems = 128;
  const Plan plan = BuildPlan(kTwoUnits, options);
  EXPECT_THAT(Text(plan),
              testing::StartsWith("load(0) pack(t0,0) start(t0) wait(t0) pack(t1,1) start(t1) "
                                  "forward(0.0) free_param(0) wait(t1) pack(t2,0) start(t2) "
                                  "forward(0.1) backward(0.1) free_param(1) pack(t3,1)"));
}

TEST(PlanTest, PrefetchWithoutOverlapMergesGathers) {
  PlanOptions options = Options(3, 2);
  options.prefetch_elems = 128;
  const Plan plan = BuildPlan(kTwoUnits, options);
  EXPECT_EQ(plan.transfers[0].segments, (std::vector<Segment>{{0, 0, 32}, {1, 0, 64}}));
  EXPECT_THAT(Text(plan), testing::StartsWith("load(0) pack(t0,0) pack(t0,1) start(t0) wait(t0) "
                                              "forward(0.0) free_param(0) forward(0.1)"));
}

TEST(PlanTest, MaxLiveParametersHoldsPrefetchBack) {
  PlanOptions options = Options(3, 2);
  options.prefetch_elems = 1000;
  options.max_live_elems = 64 + 128 - 1;
  EXPECT_EQ(Text(BuildPlan(kTwoUnits, options)), Text(BuildPlan(kTwoUnits, Options(3, 2))));
}

TEST(PlanTest, SmallUnitsRestReplicatedAndAreGatheredOnceAfterTheUpdate) {
  PlanOptions options = Options(3, 2);
  options.persistent_param_elems = 64;
  const Plan plan = BuildPlan(kTwoUnits, options);
  EXPECT_EQ(plan.units[0].param.placement, Placement::kReplicate);
  EXPECT_EQ(plan.units[1].param.placement, Placement::kShard);
  EXPECT_THAT(Text(plan), testing::HasSubstr("update(0) pack(t2,0) update(1) start(t2) wait(t2)"));
  EXPECT_EQ(SentElems(plan), (192 + 64 + 128) / 2);
}

struct Case {
  int stage;
  int world_size;
  int64_t accumulation_steps;
};

// facts of the ZeRO paper, section 7, for any number of micro-batches; (P - 1) / P of ...
int64_t IdealElems(const Case& c, int64_t psi, int64_t last_unit, int64_t first_unit) {
  const int64_t g = c.accumulation_steps;
  if (c.stage == 0 || c.stage == 1) return 2 * psi;
  if (c.stage == 2) return (g + 1) * psi;
  // Less what stays gathered: the last unit between its forward and its backward, the first between
  // two micro-batches.
  return 3 * g * psi - g * last_unit - (g - 1) * first_unit;
}

TEST(PlanTest, TrafficIsTheZeroPapersForEveryStageAndBucket) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int P : {2, 4}) {
      for (const int64_t g : {1, 3}) {
        for (const int64_t bucket : {1, 200, 1'000'000}) {
          PlanOptions options = Options(stage, P, g);
          options.reduce_bucket_elems = options.gather_bucket_elems = bucket;
          const Plan plan = BuildPlan(kTwoUnits, options);
          const int64_t ideal = IdealElems({stage, P, g}, 192, 128, 64);
          EXPECT_EQ(SentElems(plan), ideal * (P - 1) / P) << stage << " " << P << " " << g;
        }
      }
    }
  }
}

// Simulates the plan: buckets are never shared by two transfers in flight, nothing is computed
// on parameters that are not there, nothing stays in flight or gathered.
void CheckLaws(const std::vector<PlanUnit>& units, const Plan& plan) {
  std::map<int, int> owner;  // bucket -> transfer
  std::set<int> started;
  std::map<int, std::set<int>> waiting;  // unit -> parameter transfers not yet waited for
  std::set<int> gathered;
  for (const Instruction& i : plan.instructions) {
    if (i.op == Op::kPack) {
      const int bucket = plan.transfers[i.transfer].bucket;
      ASSERT_TRUE(!owner.contains(bucket) || owner[bucket] == i.transfer) << ToString(i);
      owner[bucket] = i.transfer;
      ASSERT_FALSE(started.contains(i.transfer));
      if (plan.transfers[i.transfer].state == State::kParam) {
        waiting[i.unit].insert(i.transfer);
        gathered.insert(i.unit);
      }
    } else if (i.op == Op::kStart) {
      started.insert(i.transfer);
    } else if (i.op == Op::kWait) {
      ASSERT_EQ(started.count(i.transfer), 1u);
      owner.erase(plan.transfers[i.transfer].bucket);
      for (auto& [unit, transfers] : waiting)
        transfers.erase(i.transfer);
    } else if (i.op == Op::kForward || i.op == Op::kBackward) {
      std::vector<int> needs = units[i.unit].borrows;
      needs.push_back(i.unit);
      for (const int unit : needs) {
        if (plan.units[unit].param.placement == Placement::kReplicate) continue;
        ASSERT_TRUE(gathered.contains(unit) && waiting[unit].empty()) << ToString(i);
      }
    } else if (i.op == Op::kFreeParam) {
      ASSERT_EQ(gathered.erase(i.unit), 1u);
    } else if (i.op == Op::kNorm) {
      ASSERT_TRUE(owner.empty());
    }
  }
  EXPECT_TRUE(owner.empty());
  for (const int unit : gathered)
    EXPECT_EQ(plan.units[unit].param.placement, Placement::kReplicate);
}

TEST(PlanTest, GivenBucketsCutWhatTheyDoNotHoldAndAreNotUsedIfTheyAreEmpty) {
  PlanOptions options = Options(3, 2);
  options.backward = false;
  options.overlap = true;
  options.given_bucket_row_elems = {0, 0, 48, 0};
  const Plan plan = BuildPlan(kTwoUnits, options);
  EXPECT_THAT(Transfers(plan),
              testing::ElementsAre(
                  "t0: all-gather param to replicate, bucket 2, rows of 32: unit 0 [0, +32)",
                  "t1: all-gather param to replicate, bucket 2, rows of 48: unit 1 [0, +48)",
                  "t2: all-gather param to replicate, bucket 2, rows of 16: unit 1 [48, +16)"));
  CheckLaws(kTwoUnits, plan);
}

TEST(PlanTest, EveryPlanObeysTheLawsOfBucketsAndParameters) {
  int num_plans = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool overlap : {false, true}) {
      for (const int64_t bucket : {1, 100, 1'000'000}) {
        for (const int64_t prefetch : {0, 100, 1000}) {
          for (const int64_t persistent : {0, 64}) {
            PlanOptions options = Options(stage, 2, 2);
            options.overlap = overlap;
            options.reduce_bucket_elems = options.gather_bucket_elems = bucket;
            options.prefetch_elems = prefetch;
            options.persistent_param_elems = persistent;
            SCOPED_TRACE(PlanText(BuildPlan(kTied, options)));
            CheckLaws(kTied, BuildPlan(kTied, options));
            ++num_plans;
          }
        }
      }
    }
  }
  EXPECT_EQ(num_plans, 144);
}

}  // namespace
}  // namespace dsat::engine
