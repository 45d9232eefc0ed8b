// Tests which micro-batch sizes a search may use.
#include <gtest/gtest.h>

#include "proto/experiment.h"

namespace dsat {
namespace {

TEST(MicroBatchTest, SizesAreMultiplesIfTheBatchFollowsThem) {
  const SearchSpace space{.stages = {}, .divisible_by = 4};
  EXPECT_EQ(LegalMicroBatch(space, 11), 8);
  EXPECT_EQ(LegalMicroBatch(space, 4), 4);
  EXPECT_EQ(LegalMicroBatch(space, 1), 4);
}

TEST(MicroBatchTest, SizesDivideAFixedBatch) {
  const SearchSpace space{.stages = {}, .samples_per_step = 24};
  EXPECT_EQ(LegalMicroBatch(space, 1), 1);
  EXPECT_EQ(LegalMicroBatch(space, 7), 6);
  EXPECT_EQ(LegalMicroBatch(space, 23), 12);
  EXPECT_EQ(LegalMicroBatch(space, 1000), 24);
}

TEST(MicroBatchTest, BothRulesHold) {
  const SearchSpace space{.stages = {}, .samples_per_step = 24, .divisible_by = 4};
  EXPECT_EQ(LegalMicroBatch(space, 11), 8);
  EXPECT_EQ(LegalMicroBatch(space, 2), 4);
  EXPECT_EQ(LegalMicroBatch(space, 20), 12);
}

TEST(MicroBatchTest, OnlyTheUsersSizesAreLegal) {
  const SearchSpace space{.stages = {}, .micro_batch_sizes = {2, 6, 16}};
  EXPECT_EQ(LegalMicroBatch(space, 1), 2);
  EXPECT_EQ(LegalMicroBatch(space, 15), 6);
  EXPECT_EQ(LegalMicroBatch(space, 100), 16);
  const SearchSpace fixed{.stages = {}, .samples_per_step = 24, .micro_batch_sizes = {2, 6, 16}};
  EXPECT_EQ(LegalMicroBatch(fixed, 100), 6);
}

TEST(MicroBatchTest, NoSizeMayBeLegal) {
  EXPECT_EQ(LegalMicroBatch({.stages = {}, .divisible_by = 4, .micro_batch_sizes = {2, 6}}, 6), 0);
  EXPECT_EQ(LegalMicroBatch({.stages = {}, .samples_per_step = 6, .divisible_by = 4}, 6), 0);
}

}  // namespace
}  // namespace dsat
