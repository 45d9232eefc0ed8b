// The kernels of Llama and of image models against formulas in double; their gradients against
// numeric derivatives of those formulas.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

size_t At(int64_t i) {
  return static_cast<size_t>(i);
}

// A gradient that was added to: `before` + the numeric gradient of dy . f by x.
void ExpectAdded(const TestTensor& actual, const Doubles& before, const Doubles& x,
                 const std::function<double(const Doubles&)>& f, DType dtype,
                 double magnitude = 1) {
  ExpectGradient(actual, Zip(NumericGradient(x, f), before, std::plus<>()), dtype, magnitude);
}

// ---- RMS norm. ----

Doubles RmsNorm(const Doubles& x, const Doubles& weight, Doubles* rstd = nullptr) {
  Doubles y;
  for (size_t begin = 0; begin < x.size(); begin += weight.size()) {
    double square = 0;
    for (size_t c = 0; c < weight.size(); ++c)
      square += x[begin + c] * x[begin + c] / static_cast<double>(weight.size());
    const double r = 1 / std::sqrt(square + 1e-3);
    if (rstd != nullptr) rstd->push_back(r);
    for (size_t c = 0; c < weight.size(); ++c)
      y.push_back(x[begin + c] * r * weight[c]);
  }
  return y;
}

TEST_P(KernelsTest, RmsNormIsTheFormulaAndItsDerivative) {
  constexpr int64_t kN = 37, kC = 21;  // More than one partial sum.
  Random random(1);
  TestTensor x = random.Normal(dtype(), kN * kC), weight = random.Normal(dtype(), kC);
  TestTensor y = TestTensor::Poisoned(dtype(), kN * kC);
  TestTensor rstd = TestTensor::Poisoned(DType::kF32, kN);
  kernels().Run(op::RmsNormForward{y.get(), rstd.get(), x.get(), weight.get(), kN, kC, 1e-3F});
  Doubles expected_rstd;
  ExpectClose(y, RmsNorm(x.Values(), weight.Values(), &expected_rstd), dtype());
  ExpectClose(rstd, expected_rstd, DType::kF32);

  TestTensor dy = random.Normal(dtype(), kN * kC);
  const Doubles weights = dy.Values();
  const auto by_x = [&](const Doubles& v) { return Dot(weights, RmsNorm(v, weight.Values())); };
  const auto by_weight = [&](const Doubles& v) { return Dot(weights, RmsNorm(x.Values(), v)); };
  for (const bool accumulate : {false, true}) {
    TestTensor dx = random.Normal(dtype(), kN * kC), dweight = random.Normal(dtype(), kC);
    const Doubles dweight_before = dweight.Values();
    const Doubles dx_before = accumulate ? dx.Values() : Doubles(At(kN * kC), 0.0);
    kernels().Run(op::RmsNormBackward{dx.get(), dweight.get(), dy.get(), x.get(), weight.get(),
                                      rstd.get(), kN, kC, accumulate});
    ExpectAdded(dx, dx_before, x.Values(), by_x, dtype());
    ExpectAdded(dweight, dweight_before, weight.Values(), by_weight, dtype(), 5);
  }
}

TEST_P(KernelsTest, NormsWithoutParameterGradientsGiveTheSameDx) {
  constexpr int64_t kN = 6, kC = 8;
  Random random(9);
  TestTensor x = random.Normal(dtype(), kN * kC), weight = random.Normal(dtype(), kC);
  TestTensor dy = random.Normal(dtype(), kN * kC), bias = random.Normal(dtype(), kC);
  TestTensor mean = random.Normal(DType::kF32, kN * 2), rstd = random.Normal(DType::kF32, kN * 2);
  const auto dx_of = [&](const std::function<void(Tensor, Tensor, Tensor)>& backward, bool wanted) {
    TestTensor dx = TestTensor::Poisoned(dtype(), kN * kC);
    TestTensor dweight = TestTensor::Zeros(dtype(), kC), dbias = TestTensor::Zeros(dtype(), kC);
    backward(dx.get(), wanted ? dweight.get() : Tensor{}, wanted ? dbias.get() : Tensor{});
    return dx.bytes();
  };
  const std::vector<std::function<void(Tensor, Tensor, Tensor)>> norms = {
      [&](Tensor dx, Tensor dweight, Tensor dbias) {
        kernels().Run(op::LayerNormBackward{dx, dweight, dbias, dy.get(), x.get(), weight.get(),
                                            mean.get(), rstd.get(), kN, kC, false});
      },
      [&](Tensor dx, Tensor dweight, Tensor) {
        kernels().Run(op::RmsNormBackward{dx, dweight, dy.get(), x.get(), weight.get(), rstd.get(),
                                          kN, kC, false});
      },
      [&](Tensor dx, Tensor dweight, Tensor dbias) {
        kernels().Run(op::GroupNormBackward{dx,
                                            dweight,
                                            dbias,
                                            dy.get(),
                                            x.get(),
                                            weight.get(),
                                            mean.get(),
                                            rstd.get(),
                                            {.N = 2, .P = 3, .C = kC, .G = 2}});
      }};
  for (const auto& norm : norms)
    EXPECT_EQ(dx_of(norm, false), dx_of(norm, true));
}

// ---- SwiGLU. ----

Doubles Swiglu(const Doubles& x, size_t F) {
  Doubles y;
  for (size_t row = 0; row < x.size(); row += 2 * F) {
    for (size_t i = 0; i < F; ++i)
      y.push_back(x[row + i] / (1 + std::exp(-x[row + i])) * x[row + F + i]);
  }
  return y;
}

TEST_P(KernelsTest, SwigluIsTheFormulaAndItsDerivative) {
  constexpr int64_t kN = 5, kF = 19;
  Random random(2);
  TestTensor x = random.Normal(dtype(), 2 * kN * kF, 3), dy = random.Normal(dtype(), kN * kF);
  TestTensor y = TestTensor::Poisoned(dtype(), kN * kF);
  TestTensor dx = TestTensor::Poisoned(dtype(), 2 * kN * kF);
  kernels().Run(op::SwigluForward{y.get(), x.get(), kN, kF});
  ExpectClose(y, Swiglu(x.Values(), kF), dtype());
  kernels().Run(op::SwigluBackward{dx.get(), dy.get(), x.get(), kN, kF});
  const Doubles weights = dy.Values();
  ExpectGradient(
      dx,
      NumericGradient(x.Values(), [&](const Doubles& v) { return Dot(weights, Swiglu(v, kF)); }),
      dtype());
}

// ---- Rotary positions. ----

TEST_P(KernelsTest, RotationTurnsThePairsOfTheFirstHeads) {
  const RotaryShape s{.B = 2, .T = 5, .stride = 20, .heads = 3, .head_channels = 6};
  const std::vector<float> frequencies = {1.0F, 0.1F, 0.03F};
  TestTensor x = Random(3).Normal(dtype(), s.B * s.T * s.stride);
  const Doubles start = x.Values();
  Doubles expected = start;
  for (int64_t row = 0; row < s.B * s.T; ++row) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < 3; ++i) {
        const double angle = static_cast<double>(row % s.T) * double{frequencies[At(i)]};
        const size_t low = At(row * s.stride + h * 6 + i), high = low + 3;
        expected[low] = start[low] * std::cos(angle) - start[high] * std::sin(angle);
        expected[high] = start[high] * std::cos(angle) + start[low] * std::sin(angle);
      }
    }
  }
  kernels().Run(op::RotateInPlace{x.get(), frequencies, /*negative=*/false, s});
  ExpectClose(x, expected, dtype());
  kernels().Run(op::RotateInPlace{x.get(), frequencies, /*negative=*/true, s});
  ExpectClose(x, start, dtype(), dtype() == DType::kF32 ? 1 : 1000);  // Rounded twice.
}

TEST_P(KernelsTest, RotationTableFollowsItsArguments) {
  const RotaryShape s{.B = 1, .T = 4, .stride = 2, .heads = 1, .head_channels = 2};
  RotaryShape longer = s;
  longer.T = 6;
  TestTensor ones(DType::kF32, Doubles(12, 1.0));
  kernels().Run(op::RotateInPlace{ones.get(), std::vector<float>{0.5F}, false, s});
  kernels().Run(op::RotateInPlace{ones.get(), std::vector<float>{0.5F}, true, s});
  kernels().Run(op::RotateInPlace{ones.get(), std::vector<float>{0.25F}, false, longer});
  const double angle = 5 * 0.25;
  EXPECT_NEAR(ones.Values()[10], std::cos(angle) - std::sin(angle), 1e-6);
  EXPECT_NEAR(ones.Values()[11], std::cos(angle) + std::sin(angle), 1e-6);
}

// ---- Convolutions. ----

Doubles Conv(const Doubles& x, const Doubles& weight, const ConvShape& s) {
  Doubles y(At(s.NumOut()), 0.0);
  for (int64_t i = 0; i < s.NumOut(); ++i) {
    const int64_t o = i % s.out, col = i / s.out % s.OutW(), row = i / s.out / s.OutW() % s.OutH();
    const int64_t n = i / s.out / s.OutW() / s.OutH();
    for (int64_t tap = 0; tap < s.kernel * s.kernel; ++tap) {
      const int64_t h = row * s.stride + tap / s.kernel - s.kernel / 2;
      const int64_t w = col * s.stride + tap % s.kernel - s.kernel / 2;
      if (h < 0 || h >= s.H || w < 0 || w >= s.W) continue;
      for (int64_t c = 0; c < s.in; ++c) {
        y[At(i)] += x[At(((n * s.H + h) * s.W + w) * s.in + c)] *
                    weight[At((o * s.in + c) * s.kernel * s.kernel + tap)];
      }
    }
  }
  return y;
}

// Three channels, as pixels have; odd sizes and a batch of uneven pieces; 1 x 1; blocked channels.
constexpr ConvShape kConvShapes[] = {
    {.N = 2, .H = 5, .W = 4, .in = 3, .out = 7, .kernel = 3, .stride = 1},
    {.N = 9, .H = 5, .W = 3, .in = 2, .out = 3, .kernel = 3, .stride = 2},
    {.N = 1, .H = 6, .W = 6, .in = 16, .out = 8, .kernel = 3, .stride = 2},
    {.N = 2, .H = 6, .W = 5, .in = 5, .out = 4, .kernel = 1, .stride = 2}};

TEST_P(KernelsTest, ConvolutionIsTheSumOverItsTaps) {
  for (const ConvShape& s : kConvShapes) {
    Random random(4);
    TestTensor x = random.Normal(dtype(), s.NumIn()),
               weight = random.Normal(dtype(), s.NumWeights());
    TestTensor y = TestTensor::Poisoned(dtype(), s.NumOut());
    kernels().Run(op::ConvForward{y.get(), x.get(), weight.get(), s});
    ExpectClose(y, Conv(x.Values(), weight.Values(), s), dtype(), 5);
  }
}

TEST_P(KernelsTest, ConvolutionGradientsAreTheDerivatives) {
  for (const ConvShape& s : kConvShapes) {
    Random random(5);
    TestTensor x = random.Normal(dtype(), s.NumIn()),
               weight = random.Normal(dtype(), s.NumWeights());
    TestTensor dy = random.Normal(dtype(), s.NumOut());
    TestTensor dx = TestTensor::Poisoned(dtype(), s.NumIn());
    TestTensor dweight = random.Normal(dtype(), s.NumWeights());
    const Doubles before = dweight.Values();
    kernels().Run(op::ConvInputGrad{dx.get(), dy.get(), weight.get(), s});
    kernels().Run(op::ConvWeightGrad{dweight.get(), dy.get(), x.get(), s});
    const Doubles w = dy.Values();
    const auto by_x = [&](const Doubles& v) { return Dot(w, Conv(v, weight.Values(), s)); };
    const auto by_weight = [&](const Doubles& v) { return Dot(w, Conv(x.Values(), v, s)); };
    ExpectAdded(dx, Doubles(At(s.NumIn()), 0.0), x.Values(), by_x, dtype(), 5);
    ExpectAdded(dweight, before, weight.Values(), by_weight, dtype(), 5);
  }
}

// The shortcuts of narrow residual networks. A library may take whole vectors of channels.
TEST_P(KernelsTest, TheWeightsOfAFewChannelsGetTheirGradients) {
  for (int64_t in = 1; in <= 9; ++in) {
    const ConvShape s{.N = 2, .H = 32, .W = 32, .in = in, .out = 2 * in, .kernel = 1, .stride = 2};
    Random random(6);
    TestTensor x = random.Normal(dtype(), s.NumIn()), dy = random.Normal(dtype(), s.NumOut());
    TestTensor dweight(dtype(), Doubles(At(s.NumWeights()), 0.0));
    kernels().Run(op::ConvWeightGrad{dweight.get(), dy.get(), x.get(), s});
    const Doubles pixels = x.Values(), grads = dy.Values();
    Doubles expected(At(s.NumWeights()), 0.0);
    for (int64_t i = 0; i < s.NumOut(); ++i) {
      const int64_t o = i % s.out, col = i / s.out % s.OutW(), rows = i / s.out / s.OutW();
      const int64_t pixel =
          (rows / s.OutH() * s.H + rows % s.OutH() * s.stride) * s.W + col * s.stride;
      for (int64_t c = 0; c < s.in; ++c)
        expected[At(o * s.in + c)] += grads[At(i)] * pixels[At(pixel * s.in + c)];
    }
    ExpectClose(dweight, expected, dtype(), 20);
  }
}

// ---- Group norm and mean pooling. ----

struct GroupNormInput {
  Doubles x, weight, bias;
};

Doubles GroupNorm(const GroupNormInput& in, const GroupNormShape& s, Doubles* mean = nullptr,
                  Doubles* rstd = nullptr) {
  Doubles y(in.x.size());
  const int64_t channels = s.C / s.G;
  for (int64_t group = 0; group < s.N * s.G; ++group) {
    const auto at = [&](int64_t i) {
      return At((group / s.G * s.P + i / channels) * s.C + group % s.G * channels + i % channels);
    };
    const auto count = static_cast<double>(s.P * channels);
    double m = 0, variance = 0;
    for (int64_t i = 0; i < s.P * channels; ++i)
      m += in.x[at(i)] / count;
    for (int64_t i = 0; i < s.P * channels; ++i)
      variance += std::pow(in.x[at(i)] - m, 2) / count;
    const double r = 1 / std::sqrt(variance + 1e-5);
    if (mean != nullptr) mean->push_back(m);
    if (rstd != nullptr) rstd->push_back(r);
    for (int64_t i = 0; i < s.P * channels; ++i) {
      const size_t c = at(i) % At(s.C);
      y[at(i)] = (in.x[at(i)] - m) * r * in.weight[c] + in.bias[c];
    }
  }
  return y;
}

TEST_P(KernelsTest, GroupNormIsTheFormulaAndItsDerivative) {
  const GroupNormShape s{.N = 3, .P = 7, .C = 12, .G = 4};
  Random random(6);
  TestTensor x = random.Normal(dtype(), s.NumElems(), 2), dy = random.Normal(dtype(), s.NumElems());
  TestTensor weight = random.Normal(dtype(), s.C), bias = random.Normal(dtype(), s.C);
  TestTensor y = TestTensor::Poisoned(dtype(), s.NumElems());
  TestTensor mean = TestTensor::Poisoned(DType::kF32, s.N * s.G);
  TestTensor rstd = TestTensor::Poisoned(DType::kF32, s.N * s.G);
  kernels().Run(
      op::GroupNormForward{y.get(), mean.get(), rstd.get(), x.get(), weight.get(), bias.get(), s});
  const GroupNormInput in{x.Values(), weight.Values(), bias.Values()};
  Doubles expected_mean, expected_rstd;
  ExpectClose(y, GroupNorm(in, s, &expected_mean, &expected_rstd), dtype());
  ExpectClose(mean, expected_mean, DType::kF32);
  ExpectClose(rstd, expected_rstd, DType::kF32);

  const Doubles w = dy.Values();
  const auto gradient = [&](Doubles GroupNormInput::*which) {
    return [&, which](const Doubles& values) {
      GroupNormInput changed = in;
      changed.*which = values;
      return Dot(w, GroupNorm(changed, s));
    };
  };
  TestTensor dweight = random.Normal(dtype(), s.C), dbias = random.Normal(dtype(), s.C);
  const Doubles dweight_before = dweight.Values(), dbias_before = dbias.Values();
  // In place: dx is dy.
  kernels().Run(op::GroupNormBackward{dy.get(), dweight.get(), dbias.get(), dy.get(), x.get(),
                                      weight.get(), mean.get(), rstd.get(), s});
  ExpectAdded(dy, Doubles(At(s.NumElems()), 0.0), in.x, gradient(&GroupNormInput::x), dtype());
  ExpectAdded(dweight, dweight_before, in.weight, gradient(&GroupNormInput::weight), dtype(), 5);
  ExpectAdded(dbias, dbias_before, in.bias, gradient(&GroupNormInput::bias), dtype(), 5);
}

TEST_P(KernelsTest, MeanPoolSpreadsItsGradientEvenly) {
  constexpr int64_t kN = 3, kP = 5, kC = 300;  // More than one piece of channels.
  Random random(7);
  TestTensor x = random.Normal(dtype(), kN * kP * kC), dy = random.Normal(dtype(), kN * kC);
  TestTensor y = TestTensor::Poisoned(dtype(), kN * kC);
  TestTensor dx = TestTensor::Poisoned(dtype(), kN * kP * kC);
  const Doubles in = x.Values(), gradient = dy.Values();
  Doubles expected(At(kN * kC), 0.0), expected_dx(At(kN * kP * kC), 0.0);
  for (int64_t i = 0; i < kN * kP * kC; ++i) {
    const size_t to = At(i / (kP * kC) * kC + i % kC);
    expected[to] += in[At(i)] / kP;
    expected_dx[At(i)] = gradient[to] / kP;
  }
  kernels().Run(op::MeanPoolForward{y.get(), x.get(), kN, kP, kC});
  ExpectClose(y, expected, dtype());
  kernels().Run(op::MeanPoolBackward{dx.get(), dy.get(), kN, kP, kC});
  ExpectClose(dx, expected_dx, dtype());
}

TEST_P(KernelsTest, TokenWindowsEndAtTheirTokenAndBeginWithTheirSequence) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  std::vector<int32_t> windows(18, -1);
  kernels().Run(op::TokenWindows{windows.data(), tokens.data(), 2, 3, 3});
  EXPECT_EQ(windows, (std::vector<int32_t>{0, 0, 1, 0, 1, 2, 1, 2, 3, 0, 0, 4, 0, 4, 5, 4, 5, 6}));
}

}  // namespace
}  // namespace dsat::engine
