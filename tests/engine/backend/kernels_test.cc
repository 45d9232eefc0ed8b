// Elementwise kernels, embedding and cross entropy against formulas in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/rng.h"
#include "engine/backend/cpu/vec.h"
#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

// More than one block of work, and a ragged end.
constexpr int64_t kManyElems = 70001;

TEST(VecTest, ExpIsAccurateEverywhere) {
  for (float x = -86.9F; x < 88.72F; x += 0.00317F) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(Exp(x) / exact, 1.0, 2e-7) << x;
  }
  EXPECT_EQ(Exp(0.0F), 1.0F);
}

TEST(VecTest, ExpAtTheEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(-kInf), 0.0F);
  EXPECT_EQ(Exp(-1000.0F), 0.0F);
  EXPECT_EQ(Exp(88.8F), kInf);
  EXPECT_EQ(Exp(kInf), kInf);
  EXPECT_TRUE(std::isnan(Exp(std::nanf(""))));
}

TEST(VecTest, Bf16RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<Bf16>(bits);
    const Bf16 back = FromFloat<Bf16>(ToFloat(pattern));
    if (std::isnan(ToFloat(pattern))) {
      ASSERT_TRUE(std::isnan(ToFloat(back)));
    } else {
      ASSERT_EQ(back, pattern);
    }
    ASSERT_EQ(FromResult<Bf16>(ToFloat(pattern)), pattern);  // NaN, too.
  }
}

TEST(VecTest, Bf16RoundsToNearestEven) {
  const auto rounded = [](uint32_t bits) { return FromFloat<Bf16>(std::bit_cast<float>(bits)); };
  for (uint32_t below = 0; below < 0x7F7F; ++below) {  // Subnormals included.
    ASSERT_EQ(rounded((below << 16) + 0x8000), below + below % 2);
    ASSERT_EQ(rounded((below << 16) + 0x7FFF), below);
    ASSERT_EQ(rounded((below << 16) + 0x8001), below + 1);
  }
  EXPECT_EQ(rounded(0x7F7FFFFF), 0x7F80);  // The largest f32 is beyond the largest bf16.
  EXPECT_EQ(rounded(0xFF800000), 0xFF80);
  EXPECT_TRUE(std::isnan(ToFloat(rounded(0x7F800001))));  // Its upper half alone says infinity.
  EXPECT_TRUE(std::isnan(ToFloat(rounded(0x7FFFFFFF))));  // Rounding up would give -0.
}

TEST(VecTest, ResultsAreRoundedAsOtherNumbersAre) {
  Rng rng(1, 0, "bf16");
  for (int i = 0; i < 100'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(rng.NextU64()));
    if (std::isnan(x)) continue;
    ASSERT_EQ(FromResult<Bf16>(x), FromFloat<Bf16>(x)) << x;
  }
}

TEST_P(KernelsTest, FillWritesEveryElement) {
  TestTensor t = TestTensor::Poisoned(dtype(), kManyElems);
  kernels().Run(op::Fill{t.get(), 1.5F});
  ExpectClose(t, Doubles(kManyElems, 1.5), dtype());
}

TEST_P(KernelsTest, CastConvertsBetweenAllDTypes) {
  Random random(1);
  for (const DType dst_type : {DType::kF32, DType::kBF16, DType::kF16}) {
    TestTensor src = random.Normal(dtype(), kManyElems);
    TestTensor dst = TestTensor::Poisoned(dst_type, kManyElems);
    kernels().Run(op::Cast{dst.get(), src.get()});
    EXPECT_EQ(dst.bytes(), TestTensor(dst_type, src.Values()).bytes());
  }
}

TEST_P(KernelsTest, AccumulateAddsAllDTypes) {
  Random random(2);
  for (const DType dst_type : {DType::kF32, DType::kBF16, DType::kF16}) {
    TestTensor src = random.Normal(dtype(), kManyElems);
    TestTensor dst = random.Normal(dst_type, kManyElems);
    const Doubles expected = Zip(dst.Values(), src.Values(), std::plus<>());
    kernels().Run(op::Accumulate{dst.get(), src.get()});
    ExpectClose(dst, expected, dst_type);
  }
}

TEST_P(KernelsTest, ScaleMultiplies) {
  TestTensor t = Random(3).Normal(dtype(), kManyElems);
  Doubles expected = t.Values();
  for (double& x : expected)
    x *= -0.3F;
  kernels().Run(op::Scale{t.get(), -0.3F});
  ExpectClose(t, expected, dtype());
}

// SumOfSquares of `t`.
double SquaresOf(Kernels& kernels, const Tensor& t) {
  double sum = -1;
  kernels.Run(op::SumOfSquares{&sum, t});
  return sum;
}

TEST_P(KernelsTest, SumOfSquaresIsADoubleSum) {
  // Squares beyond the range of f32, or of f16.
  TestTensor t = Random(4).Normal(dtype(), kManyElems, dtype() == DType::kF16 ? 1e4 : 1e18);
  const Doubles values = t.Values();
  const double expected = Dot(values, values);
  EXPECT_NEAR(SquaresOf(kernels(), t.get()) / expected, 1, 1e-12);
  EXPECT_EQ(SquaresOf(kernels(), Tensor{nullptr, 0, dtype()}), 0);
}

TEST_P(KernelsTest, SumOfSquaresSeesInfAndNaN) {
  for (const int64_t where : {int64_t{0}, kManyElems / 2, kManyElems - 1}) {
    Doubles values(kManyElems, 1.0);
    values[static_cast<size_t>(where)] = std::numeric_limits<double>::infinity();
    EXPECT_TRUE(std::isinf(SquaresOf(kernels(), TestTensor(dtype(), values).get())));
    values[static_cast<size_t>(where)] = std::nan("");
    EXPECT_TRUE(std::isnan(SquaresOf(kernels(), TestTensor(dtype(), values).get())));
  }
}

TEST_P(KernelsTest, AddMayWriteOverItsFirstOperand) {
  Random random(5);
  TestTensor a = random.Normal(dtype(), kManyElems);
  TestTensor b = random.Normal(dtype(), kManyElems);
  TestTensor y = TestTensor::Poisoned(dtype(), kManyElems);
  const Doubles expected = Zip(a.Values(), b.Values(), std::plus<>());
  kernels().Run(op::Add{y.get(), a.get(), b.get()});
  ExpectClose(y, expected, dtype());
  kernels().Run(op::Add{a.get(), a.get(), b.get()});
  EXPECT_EQ(a.bytes(), y.bytes());
}

TEST_P(KernelsTest, GeluAndItsDerivative) {
  Random random(6);
  Doubles values = random.Normal(kManyElems, 3);
  values[0] = 0;
  values[1] = -100;
  values[2] = 100;
  values[3] = dtype() == DType::kF16 ? -6e4 : -1e10;
  TestTensor x(dtype(), values);
  TestTensor dy = random.Normal(dtype(), kManyElems);
  values = x.Values();
  TestTensor y = TestTensor::Poisoned(dtype(), kManyElems);
  kernels().Run(op::GeluForward{y.get(), x.get()});
  Doubles expected(values.size());
  std::transform(values.begin(), values.end(), expected.begin(), Gelu);
  ExpectClose(y, expected, dtype());

  TestTensor dx = TestTensor::Poisoned(dtype(), kManyElems);
  kernels().Run(op::GeluBackward{dx.get(), dy.get(), x.get()});
  Doubles checked =
      Zip(values, dy.Values(), [](double at, double grad) { return grad * GeluSlope(at); });
  checked[3] = 0;  // Differences of 1e-6 vanish beside it.
  ExpectClose(dx, checked, dtype());
  kernels().Run(op::GeluBackward{dy.get(), dy.get(), x.get()});
  EXPECT_EQ(dy.bytes(), dx.bytes());
}

TEST_P(KernelsTest, ReluAndItsDerivative) {
  Random random(7);
  Doubles values = random.Normal(kManyElems);
  values[0] = 0;
  TestTensor x(dtype(), values);
  TestTensor dy = random.Normal(dtype(), kManyElems);
  values = x.Values();
  TestTensor y = TestTensor::Poisoned(dtype(), kManyElems);
  kernels().Run(op::ReluForward{y.get(), x.get()});
  Doubles expected = values;
  for (double& v : expected)
    v = std::max(v, 0.0);
  ExpectClose(y, expected, dtype());
  TestTensor dx = TestTensor::Poisoned(dtype(), kManyElems);
  kernels().Run(op::ReluBackward{dx.get(), dy.get(), x.get()});
  ExpectClose(dx, Zip(values, dy.Values(), [](double at, double g) { return at > 0 ? g : 0; }),
              dtype());
  kernels().Run(op::ReluBackward{dy.get(), dy.get(), x.get()});
  EXPECT_EQ(dy.bytes(), dx.bytes());
}

struct EmbeddingCase {
  int64_t B = 3, T = 7, C = 13;
  int32_t V = 5;  // Fewer tokens than rows: some come often.
};

TEST_P(KernelsTest, EmbeddingAddsWordAndPosition) {
  const EmbeddingCase s;
  Random random(8);
  const std::vector<int32_t> tokens = random.Tokens(s.B * s.T, s.V);
  TestTensor wte = random.Normal(dtype(), s.V * s.C);
  TestTensor wpe = random.Normal(dtype(), s.T * s.C);
  const Doubles words = wte.Values();
  const Doubles positions = wpe.Values();
  for (const bool has_positions : {true, false}) {
    Doubles expected;
    for (int64_t i = 0; i < s.B * s.T * s.C; ++i) {
      const int64_t row = i / s.C;
      const double word =
          words[static_cast<size_t>(tokens[static_cast<size_t>(row)] * s.C + i % s.C)];
      const double position = positions[static_cast<size_t>(row % s.T * s.C + i % s.C)];
      expected.push_back(word + (has_positions ? position : 0));
    }
    TestTensor y = TestTensor::Poisoned(dtype(), s.B * s.T * s.C);
    kernels().Run(op::EmbeddingForward{y.get(), tokens.data(), wte.get(),
                                       has_positions ? wpe.get() : Tensor{}, s.B, s.T, s.C});
    ExpectClose(y, expected, dtype());
  }
}

TEST_P(KernelsTest, EmbeddingBackwardAddsToEveryUsedRow) {
  const EmbeddingCase s;
  Random random(9);
  const std::vector<int32_t> tokens = random.Tokens(s.B * s.T, s.V);
  TestTensor dy = random.Normal(dtype(), s.B * s.T * s.C);
  const Doubles grad = dy.Values();
  for (const bool has_positions : {true, false}) {
    TestTensor dwte = random.Normal(dtype(), s.V * s.C);
    TestTensor dwpe = random.Normal(dtype(), s.T * s.C);
    Doubles words = dwte.Values();
    Doubles positions = dwpe.Values();
    for (int64_t i = 0; i < s.B * s.T * s.C; ++i) {
      const int64_t row = i / s.C;
      const double g = grad[static_cast<size_t>(i)];
      words[static_cast<size_t>(tokens[static_cast<size_t>(row)] * s.C + i % s.C)] += g;
      if (has_positions) positions[static_cast<size_t>(row % s.T * s.C + i % s.C)] += g;
    }
    kernels().Run(op::EmbeddingBackward{dwte.get(), has_positions ? dwpe.get() : Tensor{}, dy.get(),
                                        tokens.data(), s.B, s.T, s.C});
    ExpectClose(dwte, words, dtype(), 4);
    ExpectClose(dwpe, positions, dtype(), 2);
  }
}

// Common tokens, tokens that occur once, and numbers of them that take one to three bytes.
TEST_P(KernelsTest, EmbeddingBackwardOfManyRowsGivesTheSameBitsEachTime) {
  constexpr int64_t kB = 3, kT = 700;
  for (const int32_t V : {1, 200, 3000, 70000}) {
    const int64_t C = V == 3000 ? 13 : 16;
    Random random(11);
    std::vector<int32_t> tokens = random.Tokens(kB * kT, V);
    for (size_t i = 0; i < tokens.size(); i += 3)
      tokens[i] = V - 1;
    TestTensor dy = random.Normal(dtype(), kB * kT * C);
    const Doubles grad = dy.Values();
    Doubles expected(static_cast<size_t>(V * C), 1.0);
    for (size_t i = 0; i < grad.size(); ++i) {
      const size_t row = i / static_cast<size_t>(C), c = i % static_cast<size_t>(C);
      expected[static_cast<size_t>(tokens[row]) * static_cast<size_t>(C) + c] += grad[i];
    }
    std::vector<char> bytes;
    for (int repeat = 0; repeat < 2; ++repeat) {
      TestTensor dwte(dtype(), Doubles(expected.size(), 1.0));
      kernels().Run(
          op::EmbeddingBackward{dwte.get(), Tensor{}, dy.get(), tokens.data(), kB, kT, C});
      ExpectClose(dwte, expected, dtype(), V == 1 ? 100 : 20);
      if (repeat == 0) bytes = dwte.bytes();
      EXPECT_EQ(dwte.bytes(), bytes);
    }
  }
}

// One token 1000 times: rounding after every addition would stop bf16 at 256.
TEST_P(KernelsTest, EmbeddingBackwardSumsInF32) {
  const std::vector<int32_t> tokens(1000, 1);
  TestTensor dy(dtype(), Doubles(1000, 1.0));
  TestTensor dwte = TestTensor::Zeros(dtype(), 2);
  kernels().Run(op::EmbeddingBackward{dwte.get(), Tensor{}, dy.get(), tokens.data(), 10, 100, 1});
  EXPECT_EQ(dwte.Values()[0], 0);
  EXPECT_EQ(dwte.Values()[1], 1000);
}

// Sum of -log softmax(logits)[target] over N rows of V, of which V_used count.
double CrossEntropy(const Doubles& logits, const std::vector<int32_t>& targets, int64_t V,
                    int64_t V_used) {
  double loss = 0;
  for (size_t row = 0; row < targets.size(); ++row) {
    const double* x = &logits[row * static_cast<size_t>(V)];
    const double max = *std::max_element(x, x + V_used);
    double sum = 0;
    for (int64_t v = 0; v < V_used; ++v)
      sum += std::exp(x[v] - max);
    loss += std::log(sum) + max - x[targets[row]];
  }
  return loss;
}

// Its gradient by the logits, `scale` times.
Doubles CrossEntropyGradient(const Doubles& logits, const std::vector<int32_t>& targets, int64_t V,
                             int64_t V_used, double scale) {
  Doubles gradient(logits.size());
  for (size_t row = 0; row < targets.size(); ++row) {
    const size_t begin = row * static_cast<size_t>(V);
    const size_t end = begin + static_cast<size_t>(V_used);
    double sum = 0;
    for (size_t i = begin; i < end; ++i)
      sum += std::exp(logits[i]);
    for (size_t i = begin; i < end; ++i)
      gradient[i] = scale * std::exp(logits[i]) / sum;
    gradient[begin + static_cast<size_t>(targets[row])] -= scale;
  }
  return gradient;
}

TEST(CrossEntropyGradientTest, IsTheNumericDerivative) {
  Random random(10);
  const Doubles logits = random.Normal(5 * 37, 4);
  const std::vector<int32_t> targets = random.Tokens(5, 31);
  const Doubles actual = CrossEntropyGradient(logits, targets, 37, 31, 0.25);
  const Doubles expected = NumericGradient(
      logits, [&](const Doubles& x) { return 0.25 * CrossEntropy(x, targets, 37, 31); });
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], 1e-8) << "at " << i;
}

// Then rows of which each thread of a GPU's block has several parts: the sum of 13000 numbers in
// f32 has an error of its own.
TEST_P(KernelsTest, CrossEntropyAndItsGradient) {
  struct Case {
    int64_t N, V, V_used;
    float scale;
    double f32_relative, absolute;
  };
  for (const auto& [N, V, V_used, scale, f32_relative, absolute] :
       {Case{5, 37, 37, 0.25F, 2e-5, 2e-6}, Case{5, 37, 31, 0.25F, 2e-5, 2e-6},
        Case{5, 37, 1, 0.25F, 2e-5, 2e-6}, Case{3, 13008, 13008, 16, 1e-4, 1e-7},
        Case{3, 13008, 13003, 16, 1e-4, 1e-7}}) {
    SCOPED_TRACE(V_used);
    Random random(10);
    TestTensor logits = random.Normal(dtype(), N * V, 4);
    const auto targets = random.Tokens(N, static_cast<int32_t>(V_used));
    const Doubles before = logits.Values();
    const double loss = CrossEntropy(before, targets, V, V_used);
    double mean = 0;
    kernels().Run(
        op::CrossEntropyInPlace{&mean, logits.get(), targets.data(), N, V, V_used, scale});
    EXPECT_NEAR(mean * static_cast<double>(N), loss, 1e-5 * loss + 1e-6);
    const Doubles expected = CrossEntropyGradient(before, targets, V, V_used, scale);
    const double relative = RelativeTolerance(dtype(), f32_relative);
    const Doubles gradient = logits.Values();
    for (size_t i = 0; i < gradient.size(); ++i) {
      const bool is_used = static_cast<int64_t>(i) % V < V_used;
      ASSERT_NEAR(gradient[i], expected[i],
                  is_used ? relative * std::abs(expected[i]) + absolute : 0)
          << i;
    }
  }
}

TEST_P(KernelsTest, RowsWithIgnoredTargetsHaveNoLossAndNoGradient) {
  constexpr int64_t kN = 5, kV = 1200, kUsed = kV - 3;
  Random random(12);
  TestTensor logits = random.Normal(dtype(), kN * kV, 4);
  TestTensor whole(dtype(), logits.Values());
  auto targets = random.Tokens(kN, kUsed);
  kernels().Run(op::CrossEntropyInPlace{nullptr, whole.get(), targets.data(), kN, kV, kUsed, 1});
  Doubles counted(logits.Values());
  counted.erase(counted.begin() + 3 * kV, counted.begin() + 4 * kV);
  counted.erase(counted.begin(), counted.begin() + kV);
  const double loss = CrossEntropy(counted, {targets[1], targets[2], targets[4]}, kV, kUsed) / 3;
  targets[0] = targets[3] = kIgnoredTarget;
  double mean = 0;
  kernels().Run(op::CrossEntropyInPlace{&mean, logits.get(), targets.data(), kN, kV, kUsed, 1, 2});
  EXPECT_NEAR(mean, loss, 1e-5 * loss);
  const Doubles gradient = logits.Values(), expected = whole.Values();
  for (size_t i = 0; i < gradient.size(); ++i) {
    const size_t row = i / kV;
    ASSERT_EQ(gradient[i], row == 0 || row == 3 ? 0 : expected[i]) << i;
  }
  targets.assign(kN, kIgnoredTarget);
  kernels().Run(op::CrossEntropyInPlace{&mean, logits.get(), targets.data(), kN, kV, kUsed, 1, kN});
  EXPECT_EQ(mean, 0);
}

TEST_P(KernelsTest, CrossEntropyOfHugeLogitsIsFinite) {
  TestTensor logits(dtype(), {32768, -32768, 0, -32768, 32768, 0});  // Powers of 2: exact in bf16.
  const std::vector<int32_t> targets = {0, 0};
  double loss = 0;
  kernels().Run(op::CrossEntropyInPlace{&loss, logits.get(), targets.data(), 2, 3, 3, 1});
  EXPECT_EQ(loss, 32768);
  ExpectClose(logits, {0, 0, 0, -1, 1, 0}, dtype());
}

TEST_P(KernelsTest, CrossEntropyShowsNaN) {
  TestTensor logits(dtype(), {1, std::nan(""), 2});
  const std::vector<int32_t> targets = {0};
  double loss = 0;
  kernels().Run(op::CrossEntropyInPlace{&loss, logits.get(), targets.data(), 1, 3, 3, 1});
  EXPECT_TRUE(std::isnan(loss));
}

}  // namespace
}  // namespace dsat::engine
