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

}  // namespace
}  // namespace dsat
