// Layer normalization against formulas in double, which numeric derivatives confirm.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

struct LayerNormInput {
  Doubles x, weight, bias;
};

struct LayerNormOutput {
  Doubles y, mean, rstd;
};

LayerNormOutput LayerNorm(const LayerNormInput& in) {
  const size_t C = in.weight.size();
  LayerNormOutput out;
  for (size_t begin = 0; begin < in.x.size(); begin += C) {
    double mean = 0, variance = 0;
    for (size_t c = 0; c < C; ++c)
      mean += in.x[begin + c] / static_cast<double>(C);
    for (size_t c = 0; c < C; ++c) {
      variance += std::pow(in.x[begin + c] - mean, 2) / static_cast<double>(C);
    }
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    out.mean.push_back(mean);
    out.rstd.push_back(rstd);
    for (size_t c = 0; c < C; ++c) {
      out.y.push_back((in.x[begin + c] - mean) * rstd * in.weight[c] + in.bias[c]);
    }
  }
  return out;
}

// The gradient of Dot(dy, y) by the formula of the derivative.
LayerNormInput LayerNormGradient(const LayerNormInput& in, const Doubles& dy) {
  const size_t C = in.weight.size();
  const LayerNormOutput out = LayerNorm(in);
  LayerNormInput gradient{Doubles(in.x.size()), Doubles(C), Doubles(C)};
  for (size_t row = 0; row < out.mean.size(); ++row) {
    const auto normed = [&](size_t c) {
      return (in.x[row * C + c] - out.mean[row]) * out.rstd[row];
    };
    double sum = 0, sum_normed = 0;
    for (size_t c = 0; c < C; ++c) {
      const double grad = dy[row * C + c];
      sum += grad * in.weight[c];
      sum_normed += grad * in.weight[c] * normed(c);
      gradient.weight[c] += grad * normed(c);
      gradient.bias[c] += grad;
    }
    for (size_t c = 0; c < C; ++c) {
      const double centered =
          dy[row * C + c] * in.weight[c] - (sum + normed(c) * sum_normed) / static_cast<double>(C);
      gradient.x[row * C + c] = centered * out.rstd[row];
    }
  }
  return gradient;
}

TEST(LayerNormTest, TheFormulaOfTheGradientIsTheNumericDerivative) {
  Random random(1);
  const LayerNormInput input{random.Normal(5 * 21, 2), random.Normal(21), random.Normal(21)};
  const Doubles dy = random.Normal(5 * 21);
  const LayerNormInput gradient = LayerNormGradient(input, dy);
  for (Doubles LayerNormInput::*which :
       {&LayerNormInput::x, &LayerNormInput::weight, &LayerNormInput::bias}) {
    const Doubles expected = NumericGradient(input.*which, [&](const Doubles& values) {
      LayerNormInput in = input;
      in.*which = values;
      return Dot(dy, LayerNorm(in).y);
    });
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR((gradient.*which)[i], expected[i], 1e-8) << "at " << i;
  }
}

// More rows than one partial sum; rows that take several warps of a GPU's block, and rows that are
// too wide for one.
TEST_P(KernelsTest, LayerNormsFollowTheFormulas) {
  for (const auto& [N, C] :
       {std::pair<int64_t, int64_t>{37, 21}, {11, 520}, {11, 523}, {11, 4104}}) {
    SCOPED_TRACE(C);
    Random random(1);
    TestTensor x = random.Normal(dtype(), N * C, 2), weight = random.Normal(dtype(), C);
    TestTensor bias = random.Normal(dtype(), C), dy = random.Normal(dtype(), N * C);
    TestTensor y = TestTensor::Poisoned(dtype(), N * C);
    TestTensor mean = TestTensor::Poisoned(DType::kF32, N);
    TestTensor rstd = TestTensor::Poisoned(DType::kF32, N);
    kernels().Run(op::LayerNormForward{y.get(), mean.get(), rstd.get(), x.get(), weight.get(),
                                       bias.get(), N, C});
    const LayerNormInput input{x.Values(), weight.Values(), bias.Values()};
    const LayerNormOutput output = LayerNorm(input);
    ExpectClose(y, output.y, dtype());
    ExpectClose(mean, output.mean, DType::kF32);
    ExpectClose(rstd, output.rstd, DType::kF32);

    const LayerNormInput gradient = LayerNormGradient(input, dy.Values());
    for (const bool accumulate : {false, true}) {
      TestTensor dx =
          accumulate ? random.Normal(dtype(), N * C) : TestTensor::Poisoned(dtype(), N * C);
      TestTensor dweight = random.Normal(dtype(), C), dbias = random.Normal(dtype(), C);
      const Doubles expected_dx =
          accumulate ? Zip(dx.Values(), gradient.x, std::plus<>()) : gradient.x;
      const Doubles expected_dweight = Zip(dweight.Values(), gradient.weight, std::plus<>());
      const Doubles expected_dbias = Zip(dbias.Values(), gradient.bias, std::plus<>());
      kernels().Run(op::LayerNormBackward{dx.get(), dweight.get(), dbias.get(), dy.get(), x.get(),
                                          weight.get(), mean.get(), rstd.get(), N, C, accumulate});
      ExpectClose(dx, expected_dx, dtype(), 4);
      ExpectClose(dweight, expected_dweight, dtype(), 5);
      ExpectClose(dbias, expected_dbias, dtype(), 5);
    }
  }
}

// The variance of numbers far from zero is not the difference of two large sums.
TEST_P(KernelsTest, LayerNormsSurviveALargeMean) {
  constexpr int64_t kC = 21;
  Doubles values(kC);
  for (size_t c = 0; c < kC; ++c)
    values[c] = 4096 + 32.0 * static_cast<double>(c % 3);
  Random random(1);
  TestTensor x(dtype(), values), y = TestTensor::Poisoned(dtype(), kC);
  TestTensor weight = random.Normal(dtype(), kC), bias = random.Normal(dtype(), kC);
  TestTensor mean = TestTensor::Poisoned(DType::kF32, 1);
  TestTensor rstd = TestTensor::Poisoned(DType::kF32, 1);
  kernels().Run(op::LayerNormForward{y.get(), mean.get(), rstd.get(), x.get(), weight.get(),
                                     bias.get(), 1, kC});
  ExpectClose(y, LayerNorm({x.Values(), weight.Values(), bias.Values()}).y, dtype(), 4);
}

// Where nothing is aligned, a GPU takes other kernels.
TEST_P(KernelsTest, LayerNormsGiveTheSameBitsWhereverTheirRowsLie) {
  constexpr int64_t kN = 5, C = 72;
  Random random(3);
  const Doubles x = random.Normal(dtype(), kN * C, 2).Values();
  const Doubles dy = random.Normal(dtype(), kN * C).Values();
  const Doubles weight = random.Normal(dtype(), C).Values();
  const auto run = [&](int64_t begin) {
    const auto at_begin = [&](Doubles values) {
      values.insert(values.begin(), static_cast<size_t>(begin), 0.0);
      return TestTensor(dtype(), values);
    };
    TestTensor in = at_begin(x), grad = at_begin(dy), scale = at_begin(weight);
    TestTensor y = at_begin(Doubles(x.size())), dx = at_begin(Doubles(x.size()));
    TestTensor mean = TestTensor::Poisoned(DType::kF32, kN);
    TestTensor rstd = TestTensor::Poisoned(DType::kF32, kN);
    TestTensor dweight = TestTensor::Zeros(dtype(), C), dbias = TestTensor::Zeros(dtype(), C);
    const auto rows = [&](TestTensor& tensor) { return tensor.get().Slice(begin, kN * C); };
    const Tensor scales = scale.get().Slice(begin, C);
    kernels().Run(
        op::LayerNormForward{rows(y), mean.get(), rstd.get(), rows(in), scales, scales, kN, C});
    kernels().Run(op::LayerNormBackward{rows(dx), dweight.get(), dbias.get(), rows(grad), rows(in),
                                        scales, mean.get(), rstd.get(), kN, C, false});
    std::vector<Doubles> results{y.Values(), dx.Values()};
    for (Doubles& result : results)
      result.erase(result.begin(), result.begin() + begin);
    results.push_back(dweight.Values());
    results.push_back(dbias.Values());
    return results;
  };
  EXPECT_EQ(run(1), run(0));
}

}  // namespace
}  // namespace dsat::engine
