// Compares the emulated tensor cores with a plain matrix multiplication.
#include <gtest/gtest.h>

#include "tests/engine/backend/emulated_cuda/warp_product.h"
#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

std::vector<uint16_t> Bits(TestTensor tensor) {
  const auto* data = static_cast<const uint16_t*>(tensor.get().data);
  return {data, data + tensor.get().num_elems};
}

TEST(TensorCoreTest, OperandsInTheLayoutOfPtxGiveThePlainProduct) {
  for (const bool bf16 : {true, false}) {
    Random random(1);
    TestTensor a = random.Normal(bf16 ? DType::kBF16 : DType::kF16, 16 * 16);
    TestTensor b = random.Normal(bf16 ? DType::kBF16 : DType::kF16, 16 * 8);
    const Doubles left = a.Values(), right = b.Values();
    for (const OperandSource source :
         {OperandSource::kLayout, OperandSource::kRows, OperandSource::kTransposed}) {
      std::vector<float> c(16 * 8, 0.5F);
      WarpProduct(c, Bits(a), Bits(b), bf16, source);
      for (size_t i = 0; i < c.size(); ++i) {
        double expected = 0.5;
        for (size_t k = 0; k < 16; ++k)
          expected += left[i / 8 * 16 + k] * right[k * 8 + i % 8];
        ASSERT_NEAR(c[i], expected, 1e-5) << "at " << i << ", source " << static_cast<int>(source);
      }
    }
  }
}

TEST(TensorCoreTest, ACopyArrivesWhenItIsWaitedFor) {
  std::array<uint8_t, 16> from;
  from.fill(7);
  const CopyStates states = CopyOf(from, /*valid=*/true);
  EXPECT_NE(states.before, from);
  EXPECT_EQ(states.after, from);
  EXPECT_EQ(CopyOf(from, /*valid=*/false).after, (std::array<uint8_t, 16>{}));
}

}  // namespace
}  // namespace dsat::engine
