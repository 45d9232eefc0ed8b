// Tests quantiles against published tables (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
#include "base/statistics.h"

#include <gtest/gtest.h>

namespace dsat {
namespace {

TEST(StudentQuantileTest, AgreesWithPublishedTables) {
  EXPECT_NEAR(StudentQuantile(0.975, 1), 12.706, 5e-4);
  EXPECT_NEAR(StudentQuantile(0.975, 2), 4.303, 5e-4);
  EXPECT_NEAR(StudentQuantile(0.975, 3), 3.182, 5e-4);
  EXPECT_NEAR(StudentQuantile(0.975, 4), 2.776, 5e-4);
  EXPECT_NEAR(StudentQuantile(0.95, 7), 1.895, 5e-4);
  EXPECT_NEAR(StudentQuantile(0.995, 10), 3.169, 5e-4);
  EXPECT_NEAR(StudentQuantile(0.975, 100), 1.984, 5e-4);
}

TEST(StudentQuantileTest, IsSymmetricAboutZero) {
  EXPECT_DOUBLE_EQ(StudentQuantile(0.025, 5), -StudentQuantile(0.975, 5));
  EXPECT_NEAR(StudentQuantile(0.5, 5), 0, 1e-9);
}

// numpy.mean, and numpy.var with ddof=1 over the number of values.
TEST(CenterTest, IsTheMeanOfValuesWithoutDisturbance) {
  const Center center = CenterOf({3, 1, 8, 4, 2});
  EXPECT_DOUBLE_EQ(center.mean, 3.6);
  EXPECT_DOUBLE_EQ(center.variance, 7.3 / 5);
  EXPECT_EQ(center.dof, 4);
  EXPECT_EQ(CenterOf({7}).mean, 7);
  EXPECT_EQ(CenterOf({7}).dof, 0);
}

// scipy.stats.trim_mean(values, 1 / 6), and the squares of scipy.stats.mstats.winsorize(values,
// 1 / 6) over 7 * 6.
TEST(CenterTest, LeavesASixthOutWhereOneIsFarAway) {
  const Center center = CenterOf({2.5, 90, 1, 3, 2, 2.25, -70, 4, 3.5});
  EXPECT_NEAR(center.mean, 2.607142857142857, 1e-12);
  EXPECT_NEAR(center.variance, 0.25000000000000006, 1e-12);
  EXPECT_EQ(center.dof, 6);
}

TEST(CenterTest, FewOrEqualValuesAreAllCounted) {
  EXPECT_DOUBLE_EQ(CenterOf({1, 1.1, 0.9, 1, 1.05, 0.95, 1, 90}).mean, 97.0 / 8);
  const Center equal = CenterOf({2, 2, 2, 2, 2, 2, 2, 2, 3});
  EXPECT_DOUBLE_EQ(equal.mean, 19.0 / 9);
  EXPECT_GT(equal.variance, 0);
}

}  // namespace
}  // namespace dsat
