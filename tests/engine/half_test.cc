// Half precision: conversions against arithmetic in double, and sums over ranks.
#include "engine/half.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/comm/sum_rows.h"
#include "tests/engine/kernels_testing.h"
#include "tests/engine/run_ranks.h"

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
  // Half way between neighbours, and next to it, at every magnitude.
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

TEST(HalfTest, SumsAreFormedInF32) {
  for (const size_t num_rows : {1, 2, 3, 8}) {
    constexpr int64_t kN = 2500;  // Across a tile.
    Random random(1);
    std::vector<TestTensor> rows;
    std::vector<const void*> pointers;
    std::vector<float> sums(kN, -0.0F);
    for (size_t r = 0; r < num_rows; ++r) {
      rows.push_back(random.Normal(DType::kF16, kN, 1000));
      const Doubles values = rows.back().Values();
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] += static_cast<float>(values[i]);
    }
    for (TestTensor& row : rows)
      pointers.push_back(row.get().data);
    SumRows(rows[0].get().data, pointers, DType::kF16, kN);
    EXPECT_EQ(rows[0].bytes(), TestTensor(DType::kF16, Doubles(sums.begin(), sums.end())).bytes());
  }
}

TEST(HalfTest, RanksSumF16Gradients) {
  RunRanks(3, [](ProcessGroup& group) {
    constexpr int64_t kRow = 5;
    const CommBuffer buffer = group.Allocate(3 * kRow * BytesPerElem(DType::kF16));
    auto* data = static_cast<F16*>(buffer.data);
    for (int64_t i = 0; i < 3 * kRow; ++i)
      data[i] = ToF16(static_cast<float>(30000 * group.rank()));
    group.AllReduce(buffer, DType::kF16, kRow);
    for (int64_t i = 0; i < 3 * kRow; ++i)
      EXPECT_EQ(ToFloat(data[i]), HUGE_VALF);  // 90000 is beyond the range; as bf16 it is not.
    for (int64_t i = 0; i < 3 * kRow; ++i)
      data[i] = ToF16(0.5F + static_cast<float>(group.rank()));
    group.ReduceScatter(buffer, DType::kF16, kRow);
    for (int64_t i = 0; i < kRow; ++i)
      EXPECT_EQ(ToFloat(data[group.rank() * kRow + i]), 4.5F);
  });
}

}  // namespace
}  // namespace dsat::engine
