// The belief about sums of unknown factors, compared with the shares of many draws.
#include "methods/auto_factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace dsat {
namespace {

using Vector = AutoFactors::Vector;

constexpr double kNoise = 0.05;

Vector Row(double first, double second, double third) {
  Vector row = Vector::Zero();
  row.head<3>() << first, second, third;
  return row;
}

struct Draw {
  Vector factors;
  double weight = 1;
};

class AutoFactorsTest : public ::testing::Test {
 protected:
  AutoFactorsTest() {
    for (Draw& draw : draws_) {
      for (int i = 0; i < AutoFactors::kNum; ++i)
        draw.factors[i] = mean_[i] + sd_[i] * rng_.Normal();
    }
  }

  double SumOf(const Vector& row, const Draw& draw) {
    return row.dot(draw.factors) + kNoise * rng_.Normal();
  }

  double ShareBelow(const Vector& row, double limit) {
    double below = 0, all = 0;
    for (const Draw& draw : draws_) {
      all += draw.weight;
      below += SumOf(row, draw) < limit ? draw.weight : 0;
    }
    return below / all;
  }

  const Vector mean_ = Row(1, 0.5, 0.2), sd_ = Row(0.3, 0.2, 0);
  AutoFactors belief_{mean_, sd_, kNoise};
  Rng rng_{1, 0, "auto_belief_test"};
  std::vector<Draw> draws_ = std::vector<Draw>(50'000);
};

TEST_F(AutoFactorsTest, ProbabilitiesAreTheSharesOfManyDraws) {
  const Vector measured = Row(1, -1, 0), above = Row(1, 1, 1), below = Row(1, 2, 0);
  belief_.IsAbove(above, 1.7);
  belief_.Measured(measured, 0.55);
  belief_.IsBelow(below, 2.3);
  for (Draw& draw : draws_) {
    const double z = (measured.dot(draw.factors) - 0.55) / kNoise;
    draw.weight = SumOf(above, draw) > 1.7 && SumOf(below, draw) < 2.3 ? std::exp(-z * z / 2) : 0;
  }
  for (const Vector& row : {above, below, Row(1, 1.2, 1), Row(0, 1, 0), Row(2, 1, 3)}) {
    for (const double limit : {-1.5, -0.5, 0., 0.5, 1.5}) {
      const double at = belief_.MeanOf(row) + limit * belief_.SdOf(row);
      EXPECT_NEAR(belief_.ProbabilityBelow(row, at), ShareBelow(row, at), 0.08)
          << row.transpose() << " below " << at;
    }
  }
}

// The moments alone would say 0.16.
TEST_F(AutoFactorsTest, WhatIsAboveIsNotBelow) {
  const Vector row = Row(1, 0, 0);
  AutoFactors belief(mean_, sd_, 0.001);
  belief.IsAbove(row, 1.2);
  EXPECT_LT(belief.ProbabilityBelow(row, 1.2), 0.02);
  EXPECT_GT(belief.ProbabilityBelow(row, 1.5), 0.5);
}

TEST_F(AutoFactorsTest, TheOrderOfMeasuredAndOneSidedSumsDoesNotMatter) {
  const Vector a = Row(1, 1, 0), b = Row(1, 0, 2), c = Row(0.5, 2, 1);
  AutoFactors other = belief_;
  belief_.IsAbove(a, 1.6);
  belief_.Measured(b, 1.5);
  other.Measured(b, 1.5);
  other.IsAbove(a, 1.6);
  EXPECT_NEAR(belief_.MeanOf(c), other.MeanOf(c), 1e-9);
  EXPECT_NEAR(belief_.SdOf(c), other.SdOf(c), 1e-9);
  EXPECT_EQ(belief_.ProbabilityBelow(c, 1.8), other.ProbabilityBelow(c, 1.8));
}

TEST_F(AutoFactorsTest, WhatIsInheritedIsWiderButNotWiderThanWithoutIt) {
  const Vector a = Row(1, 0, 0), b = Row(0, 1, 0);
  AutoFactors heir = belief_;
  belief_.Measured(a, 1.4);
  heir.Inherit(belief_, 2);
  EXPECT_EQ(heir.MeanOf(a), belief_.MeanOf(a));
  EXPECT_GT(heir.SdOf(a), 1.2 * belief_.SdOf(a));
  EXPECT_DOUBLE_EQ(heir.SdOf(b), belief_.SdOf(b));
}

}  // namespace
}  // namespace dsat
