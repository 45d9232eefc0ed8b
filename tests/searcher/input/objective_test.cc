// Tests which global batch a search keeps.
#include "searcher/input/objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/error_code.h"

namespace dsat {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class ObjectiveTest : public ::testing::Test {
 protected:
  ObjectiveTest() {
    spec_.config_path = "/home/user/deepspeed.yaml";
    spec_.slots_per_trial = 4;
    spec_.ds_config = {{"train_micro_batch_size_per_gpu", 3}, {"gradient_accumulation_steps", 2}};
  }
  std::optional<int64_t> BatchBy(const std::string& rule) {
    SetTrainBatchSize(rule, spec_);
    return spec_.options.train_batch_size;
  }
  std::string RefusalOf(const std::string& rule) {
    return dsat::RefusalOf([&] { SetTrainBatchSize(rule, spec_); });
  }

  ExperimentSpec spec_;
};

TEST_F(ObjectiveTest, ABatchThatIsGivenIsKeptAndOneThatFollowsFollows) {
  EXPECT_EQ(BatchBy(""), std::nullopt);
  for (const Json& no_number : {Json("auto"), Json()}) {
    spec_.ds_config["train_batch_size"] = no_number;
    EXPECT_EQ(BatchBy(""), std::nullopt) << no_number;
  }
  spec_.ds_config["train_batch_size"] = 24;
  EXPECT_EQ(BatchBy(""), 24);
}

TEST_F(ObjectiveTest, AutoKeepsTheBatchThatFollowsFromTheOtherSizes) {
  spec_.method = "auto";
  EXPECT_EQ(BatchBy(""), 24);
  EXPECT_EQ(BatchBy("any"), std::nullopt);
  // Whoever lists micro-batch sizes wants them.
  spec_.search_space["/train_micro_batch_size_per_gpu"] = {4, 5};
  EXPECT_EQ(BatchBy(""), std::nullopt);
}

TEST_F(ObjectiveTest, KeepFixesAlsoTheInferredOneAndAnyNone) {
  EXPECT_EQ(BatchBy("keep"), 24);
  spec_.ds_config["train_batch_size"] = 24;
  EXPECT_EQ(BatchBy("any"), std::nullopt);
}

TEST_F(ObjectiveTest, ANumberNeedNotBeTheSubmittedOne) {
  EXPECT_EQ(BatchBy("4"), 4);
  EXPECT_EQ(BatchBy("4096"), 4096);
  for (const char* wrong : {"0", "-4", "4.5", "four", "4x"})
    EXPECT_THAT(RefusalOf(wrong), HasSubstr("keep or any")) << wrong;
}

TEST_F(ObjectiveTest, ABatchThatTheRanksDoNotDivideIsRefused) {
  const std::string message = RefusalOf("10");
  for (const char* part : {"--train-batch-size", "10", "data-parallel size 4", "such as 8", "any"})
    EXPECT_THAT(message, HasSubstr(part));
  // The stages of a pipeline share samples.
  spec_.ds_config["pipeline"] = {{"stages", 2}};
  EXPECT_EQ(BatchBy("10"), 10);
  EXPECT_THAT(RefusalOf("11"), HasSubstr("data-parallel size 2 (of 4 ranks)"));
}

TEST_F(ObjectiveTest, ABatchWithoutALegalMicroBatchIsRefused) {
  spec_.options.divisible_by = 4;
  const std::string message = RefusalOf("keep");
  for (const char* part : {"--divisible-by", "multiple of 4", "divides 6", "train_batch_size 24",
                           "data-parallel size 4", "a divisor of 6"})
    EXPECT_THAT(message, HasSubstr(part));
  EXPECT_EQ(BatchBy("16"), 16);
  EXPECT_EQ(BatchBy("any"), std::nullopt);
}

TEST_F(ObjectiveTest, ABatchOfTooManyMicroBatchesIsRefusedAtOnce) {
  for (const int64_t divisible_by : {1, 7}) {
    spec_.options.divisible_by = divisible_by;
    EXPECT_THAT(RefusalOf("4611686018427387904"),
                HasSubstr("on each of 4 ranks; expected at most 100000 micro-batches"));
  }
}

TEST_F(ObjectiveTest, OwnSizesOfWhichNoneIsLegalAreRefused) {
  spec_.search_space["/train_micro_batch_size_per_gpu"] = {4, 5};
  EXPECT_THAT(RefusalOf("keep"), HasSubstr("has no size that divides 6, the samples per rank of"));
  EXPECT_THAT(RefusalOf("keep"), HasSubstr("other sizes, or --train-batch-size any"));
  spec_.options.divisible_by = 3;
  EXPECT_THAT(RefusalOf("any"), EndsWith("multiple of 3 (--divisible-by); expected other sizes"));
}

TEST_F(ObjectiveTest, ThePublishedMethodsFixNoBatch) {
  spec_.options.compat_determined = true;
  spec_.ds_config["train_batch_size"] = 24;
  EXPECT_EQ(BatchBy(""), std::nullopt);
  EXPECT_EQ(BatchBy("any"), std::nullopt);
  for (const char* rule : {"keep", "24"})
    EXPECT_THAT(RefusalOf(rule), HasSubstr("--compat determined"));
}

}  // namespace
}  // namespace dsat
