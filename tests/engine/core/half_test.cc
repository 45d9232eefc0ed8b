// Half precision: conversions against arithmetic in double.
#include "engine/core/half.h"

#include <gtest/gtest.h>

#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

TEST(HalfTest, EveryPatternHasItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const double expected = FromF16(pattern);
    const float value = ToFloat(F16{pattern});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(ToFloat(ToF16(value)))) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
      ASSERT_EQ(ToF16(value).bits, pattern);
    }
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {  // A prime: all low bits.
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    ASSERT_EQ(ToF16(x).bits, RoundToF16(x)) << x;
  }
  // Half way between neighbors, and next to it, at every magnitude.
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const auto below = static_cast<float>(FromF16(static_cast<uint16_t>(bits)));
    const double above = bits == 0x7BFF ? 65536 : FromF16(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((below + above) / 2);
    for (const float x :
         {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, HUGE_VALF), -middle}) {
      ASSERT_EQ(ToF16(x).bits, RoundToF16(x)) << x;
    }
  }
}

TEST(HalfTest, OverflowIsInfinity) {
  EXPECT_EQ(ToFloat(ToF16(65504)), 65504);
  EXPECT_EQ(ToFloat(ToF16(65519.9F)), 65504);
  EXPECT_EQ(ToFloat(ToF16(65520)), HUGE_VALF);
  EXPECT_EQ(ToFloat(ToF16(-1e30F)), -HUGE_VALF);
  EXPECT_EQ(ToFloat(ToF16(0x1p-25F)), 0);  // A tie of 0 and the smallest number.
  EXPECT_EQ(ToFloat(ToF16(0x1.8p-25F)), 0x1p-24F);
}

TEST(HalfTest, NanStaysNanWhateverItsLowBits) {
  for (const uint32_t nan : {0x7F800001U, 0xFFFFFFFFU})
    EXPECT_TRUE(std::isnan(ToFloat(ToF16(std::bit_cast<float>(nan)))));
}

}  // namespace
}  // namespace dsat::engine
