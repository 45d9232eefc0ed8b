// Tests that methods propose only what the conditions of the space allow.
#include "methods/constraints.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "methods/auto_space.h"
#include "methods/methods.h"
#include "tests/methods/method_testing.h"

namespace dsat {
namespace {

constexpr char kReduce[] = "/zero_optimization/reduce_bucket_size";
constexpr char kAllgather[] = "/zero_optimization/allgather_bucket_size";

// The submitted buckets are 8 and 7.
SearchSpace EqualBuckets(const std::vector<Json>& values) {
  SearchSpace space = TestSpace({1, 2}, 8);
  space.where = {ParseComparison(std::string(kReduce) + " == " + kAllgather)};
  for (StageSpace& stage : space.stages) {
    stage.knobs = {{kReduce, values}, {kAllgather, values}, {"/other", {1, 2}}};
    stage.submitted = {{kReduce, 8}, {kAllgather, 7}, {"/other", 1}};
  }
  return space;
}

TEST(ConstraintsTest, ComparisonsReadKeysAndConstantsInBothOrders) {
  const Comparison condition = ParseComparison("4 >= arguments.--n");
  EXPECT_EQ(condition.left, "/dsat/arguments/--n");
  EXPECT_EQ(condition.op, "<=");
  EXPECT_EQ(condition.constant, 4);
  const auto holds = [](const std::string& text, const Json& a) {
    return Holds(ParseComparison(text), [&](const std::string&) { return a; });
  };
  EXPECT_TRUE(holds("/a < 5", 4) && !holds("/a < 4", 4) && holds("/a <= 4", 4));
  EXPECT_TRUE(holds("/a > 3.5", 4) && !holds("/a > 4", 4) && holds("/a >= 4", 4));
  EXPECT_TRUE(holds("/a == x", "x") && !holds("/a != x", "x") && holds("/a != y", "x"));
  EXPECT_TRUE(holds("/a == true", true) && !holds("/a == true", false));
  // A key without a value meets every condition.
  EXPECT_TRUE(holds("/a < 5", Json()) && holds("/a == 5", "x"));
}

TEST(ConstraintsTest, TheSettingsOfAPlaceAreItsValues) {
  constexpr char kDevice[] = "/zero_optimization/offload_optimizer/device";
  SearchSpace space = TestSpace({1}, 8);
  StageSpace& place = space.stages[0];
  place.submitted = {{kDevice, "none"}};
  place.settings = {{kDevice, "cpu"}};
  space.where = {ParseComparison(std::string(kDevice) + " == cpu")};
  EXPECT_TRUE(IsAllowed(space, place, {}));
  EXPECT_FALSE(IsAllowed(space, place, {{kDevice, "nvme"}}));
  place.settings.clear();
  EXPECT_FALSE(IsAllowed(space, place, {}));
}

TEST(ConstraintsTest, TheNearestAllowedCombinationChangesAsFewKnobsAsItMust) {
  SearchSpace space = EqualBuckets({6, 7});
  EXPECT_EQ(NearestAllowed(space, space.stages[0]), (Assignment{{kReduce, 7}}));
  space = EqualBuckets({5, 6});
  EXPECT_EQ(NearestAllowed(space, space.stages[0]), (Assignment{{kReduce, 5}, {kAllgather, 5}}));
  EXPECT_EQ(NearestAllowed(space, space.stages[0], {{kAllgather, 6}}),
            (Assignment{{kReduce, 6}, {kAllgather, 6}}));
  space.where.push_back(ParseComparison(std::string(kReduce) + " > 6"));
  EXPECT_EQ(NearestAllowed(space, space.stages[0]), std::nullopt);
  space.where.clear();
  EXPECT_EQ(NearestAllowed(space, space.stages[0]), Assignment());
}

TEST(ConstraintsTest, ThreeKnobsMayHaveToChange) {
  SearchSpace space = EqualBuckets({8, 9});
  space.where = {ParseComparison(std::string(kReduce) + " > 8"),
                 ParseComparison(std::string(kAllgather) + " > 8"), ParseComparison("/other == 2")};
  const Assignment all = {{kReduce, 9}, {kAllgather, 9}, {"/other", 2}};
  EXPECT_EQ(NearestAllowed(space, space.stages[0]), all);
  SearchOptions options = TestOptions();
  const std::unique_ptr<Method> grid = FindMethod("grid").make(space, options);
  const std::optional<Proposal> proposal = grid->Ask();
  ASSERT_TRUE(proposal);
  EXPECT_TRUE(IsAllowed(space, space.stages[0], proposal->assignment));
}

TEST(ConstraintsTest, NoMethodProposesWhatIsExcluded) {
  const SearchSpace space = EqualBuckets({5, 6, 7, 9});
  for (const MethodInfo& info : Methods()) {
    SearchOptions options = TestOptions();
    options.metric = "throughput";
    const std::unique_ptr<Method> method = info.make(space, options);
    std::set<Assignment> combinations;
    for (TrialId id = 0; id < 60; ++id) {
      const std::optional<Proposal> proposal = method->Ask();
      if (!proposal) break;
      EXPECT_TRUE(IsAllowed(space, space.stages[0], proposal->assignment)) << info.name;
      Assignment buckets = proposal->assignment;
      buckets.erase("/train_micro_batch_size_per_gpu");
      combinations.insert(buckets);
      const int64_t size = MicroBatchOf(proposal->assignment);
      Trial trial = size > 8 ? EndedTrial(id, TrialState::kInfeasible)
                             : EndedTrial(id, TrialState::kSucceeded, static_cast<double>(size));
      if (!trial.points.empty()) trial.points[0].point.micro_batch_size = size;
      method->Tell(proposal->tag, trial);
    }
    EXPECT_GE(combinations.size(), 2U) << info.name;
  }
}

TEST(ConstraintsTest, AutoListsAndCountsOnlyWhatIsAllowed) {
  const std::vector<Json> values = {1, 2, 3, 4};
  const AutoSpace space(EqualBuckets(values), TestOptions());
  ASSERT_EQ(space.knobs(0).size(), 8U);  // 4 equal pairs, 2 other values.
  EXPECT_EQ(space.num_candidates(), 2 * 8 * space.sizes(0).size());
  EXPECT_DOUBLE_EQ(space.num_configs(), static_cast<double>(space.num_candidates()));
}

TEST(ConstraintsTest, AutoDrawsAllowedCombinationsFromMillions) {
  SearchSpace large = EqualBuckets({1, 2, 3, 4});
  for (StageSpace& stage : large.stages) {
    for (int i = 0; i < 12; ++i) {
      stage.knobs.push_back({"/key" + std::to_string(i), {1, 2, 3}});
      stage.submitted["/key" + std::to_string(i)] = 1;
    }
  }
  const AutoSpace space(large, TestOptions());
  EXPECT_LE(space.num_candidates(), AutoSpace::kMostCandidates);
  EXPECT_GT(space.num_candidates(), AutoSpace::kMostCandidates / 4);
  // 2 stages, 8 combinations of the first knobs, 3^12 of the others.
  const double exact = 2.0 * 8 * 531441 * static_cast<double>(space.sizes(0).size());
  EXPECT_NEAR(space.num_configs() / exact, 1, 0.2);
  for (int64_t i = 0; i < std::ssize(space.knobs(0)); ++i) {
    const Assignment assignment = space.AssignmentOf({0, i, 0});
    EXPECT_EQ(assignment.at(kReduce), assignment.at(kAllgather));
  }
}

}  // namespace
}  // namespace dsat
