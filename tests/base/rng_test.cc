// Compares draws with fixed values, which must never change.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace dsat {
namespace {

TEST(RngTest, SameKeyGivesTheSameDraws) {
  Rng a(1, 2, "knobs");
  Rng b(1, 2, "knobs");
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(a.NextU64(), b.NextU64());
}

TEST(RngTest, SeedStreamAndPurposeEachSeparate) {
  std::set<uint64_t> firsts;
  firsts.insert(Rng(1, 2, "knobs").NextU64());
  firsts.insert(Rng(2, 2, "knobs").NextU64());
  firsts.insert(Rng(1, 3, "knobs").NextU64());
  firsts.insert(Rng(1, 2, "stage").NextU64());
  EXPECT_EQ(firsts.size(), 4u);
}

TEST(RngTest, SeekJumpsToAnyDraw) {
  Rng sequential(7, 0, "x");
  std::array<uint64_t, 9> draws = {};
  for (uint64_t& draw : draws)
    draw = sequential.NextU64();
  for (size_t index : {8u, 0u, 5u, 4u, 1u}) {
    Rng rng(7, 0, "x");
    rng.Seek(index);
    EXPECT_EQ(rng.NextU64(), draws[index]) << index;
  }
}

TEST(RngTest, BelowIsUniformAndInRange) {
  Rng rng(3, 0, "below");
  std::array<int, 6> counts = {};
  for (int i = 0; i < 60000; ++i)
    ++counts.at(rng.Below(6));
  for (int count : counts)
    EXPECT_NEAR(count, 10000, 500);  // 5 standard deviations.
  EXPECT_EQ(rng.Below(1), 0u);
}

TEST(RngTest, UniformNormalAndBinomialHaveTheirMoments) {
  Rng rng(5, 0, "moments");
  double uniform = 0, normal = 0, square = 0, binomial = 0;
  const int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    double u = rng.Uniform();
    EXPECT_TRUE(u >= 0 && u < 1);
    uniform += u;
    double n = rng.Normal();
    normal += n;
    square += n * n;
    int64_t b = rng.Binomial(10, 0.3);
    EXPECT_TRUE(b >= 0 && b <= 10);
    binomial += static_cast<double>(b);
  }
  EXPECT_NEAR(uniform / kDraws, 0.5, 0.011);
  EXPECT_NEAR(normal / kDraws, 0, 0.036);
  EXPECT_NEAR(square / kDraws, 1, 0.051);
  EXPECT_NEAR(binomial / kDraws, 3, 0.052);
}

TEST(StableHashTest, IsFnv1a) {
  // Values of the FNV reference: offset basis, "a", "foobar".
  EXPECT_EQ(StableHash(""), 0xcbf29ce484222325u);
  EXPECT_EQ(StableHash("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(StableHash("foobar"), 0x85944171f73967e8u);
}

}  // namespace
}  // namespace dsat
