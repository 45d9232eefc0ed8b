// Layer normalization against formulas in double; its gradients against numeric derivatives of
// those formulas.
#include <gtest/gtest.h>

#include <algorithm>

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

class LayerNormTest : public KernelsTest {
 protected:
  static constexpr int64_t kN = 37;  // More than one partial sum.
  static constexpr int64_t kC = 21;

  LayerNormTest() {
    Random random(1);
    x_ = random.Normal(dtype(), kN * kC, 2);
    weight_ = random.Normal(dtype(), kC);
    bias_ = random.Normal(dtype(), kC);
    dy_ = random.Normal(dtype(), kN * kC);
    input_ = {x_.Values(), weight_.Values(), bias_.Values()};
    const LayerNormOutput output = LayerNorm(input_);
    mean_ = TestTensor(DType::kF32, output.mean);
    rstd_ = TestTensor(DType::kF32, output.rstd);
  }

  // The numeric gradient of dy . y by one of the inputs.
  Doubles Gradient(Doubles LayerNormInput::*which) const {
    const Doubles dy = dy_.Values();
    return NumericGradient(input_.*which, [&](const Doubles& values) {
      LayerNormInput in = input_;
      in.*which = values;
      return Dot(dy, LayerNorm(in).y);
    });
  }

  TestTensor x_, weight_, bias_, dy_, mean_, rstd_;
  LayerNormInput input_;
};

INSTANTIATE_TEST_SUITE_P(DTypes, LayerNormTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

TEST_P(LayerNormTest, ForwardSavesItsStatistics) {
  TestTensor y = TestTensor::Poisoned(dtype(), kN * kC);
  TestTensor mean = TestTensor::Poisoned(DType::kF32, kN);
  TestTensor rstd = TestTensor::Poisoned(DType::kF32, kN);
  kernels().Run(op::LayerNormForward{y.get(), mean.get(), rstd.get(), x_.get(), weight_.get(),
                                     bias_.get(), kN, kC});
  const LayerNormOutput expected = LayerNorm(input_);
  ExpectClose(y, expected.y, dtype());
  ExpectClose(mean, expected.mean, DType::kF32);
  ExpectClose(rstd, expected.rstd, DType::kF32);
}

// The variance of numbers far from zero is not the difference of two large sums.
TEST_P(LayerNormTest, ForwardSurvivesALargeMean) {
  Doubles values(kC);
  for (size_t c = 0; c < kC; ++c)
    values[c] = 4096 + 32.0 * static_cast<double>(c % 3);
  TestTensor x(dtype(), values);
  TestTensor y = TestTensor::Poisoned(dtype(), kC);
  TestTensor mean = TestTensor::Poisoned(DType::kF32, 1);
  TestTensor rstd = TestTensor::Poisoned(DType::kF32, 1);
  kernels().Run(op::LayerNormForward{y.get(), mean.get(), rstd.get(), x.get(), weight_.get(),
                                     bias_.get(), 1, kC});
  ExpectClose(y, LayerNorm({x.Values(), input_.weight, input_.bias}).y, dtype(), 4);
}

TEST_P(LayerNormTest, BackwardIsTheDerivative) {
  for (const bool accumulate : {false, true}) {
    Random random(2);
    TestTensor dx =
        accumulate ? random.Normal(dtype(), kN * kC) : TestTensor::Poisoned(dtype(), kN * kC);
    TestTensor dweight = random.Normal(dtype(), kC);
    TestTensor dbias = random.Normal(dtype(), kC);
    Doubles expected_dx = Gradient(&LayerNormInput::x);
    Doubles expected_dweight = Gradient(&LayerNormInput::weight);
    Doubles expected_dbias = Gradient(&LayerNormInput::bias);
    const Doubles dx_before = dx.Values();
    const Doubles dweight_before = dweight.Values();
    const Doubles dbias_before = dbias.Values();
    for (size_t i = 0; accumulate && i < expected_dx.size(); ++i)
      expected_dx[i] += dx_before[i];
    for (size_t c = 0; c < kC; ++c) {
      expected_dweight[c] += dweight_before[c];
      expected_dbias[c] += dbias_before[c];
    }
    kernels().Run(op::LayerNormBackward{dx.get(), dweight.get(), dbias.get(), dy_.get(), x_.get(),
                                        weight_.get(), mean_.get(), rstd_.get(), kN, kC,
                                        accumulate});
    ExpectGradient(dx, expected_dx, dtype());
    ExpectGradient(dweight, expected_dweight, dtype(), 5);
    ExpectGradient(dbias, expected_dbias, dtype(), 5);
  }
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

// Rows that take several warps of a GPU's block, and rows that are too wide for one; by the formula
// of the derivative.
TEST_P(KernelsTest, LayerNormsOfWideRowsAreRight) {
  constexpr int64_t kN = 11;
  for (const int64_t C : {520, 523, 4104}) {
    SCOPED_TRACE(C);
    const auto columns = static_cast<size_t>(C);
    Random random(1);
    TestTensor x = random.Normal(dtype(), kN * C, 2), weight = random.Normal(dtype(), C);
    TestTensor bias = random.Normal(dtype(), C), dy = random.Normal(dtype(), kN * C);
    TestTensor y = TestTensor::Poisoned(dtype(), kN * C);
    TestTensor mean = TestTensor::Poisoned(DType::kF32, kN);
    TestTensor rstd = TestTensor::Poisoned(DType::kF32, kN);
    kernels().Run(op::LayerNormForward{y.get(), mean.get(), rstd.get(), x.get(), weight.get(),
                                       bias.get(), kN, C});
    const LayerNormOutput expected = LayerNorm({x.Values(), weight.Values(), bias.Values()});
    ExpectClose(y, expected.y, dtype());
    ExpectClose(mean, expected.mean, DType::kF32);
    ExpectClose(rstd, expected.rstd, DType::kF32);

    TestTensor dx = random.Normal(dtype(), kN * C);
    TestTensor dweight = TestTensor::Zeros(dtype(), C), dbias = TestTensor::Zeros(dtype(), C);
    Doubles expected_dx = dx.Values(), expected_dweight(columns), expected_dbias(columns);
    const Doubles grads = dy.Values(), values = x.Values(), weights = weight.Values();
    for (size_t row = 0; row < kN; ++row) {
      const double r = expected.rstd[row];
      const auto normed = [&](size_t c) {
        return (values[row * columns + c] - expected.mean[row]) * r;
      };
      double sum = 0, sum_normed = 0;
      for (size_t c = 0; c < columns; ++c) {
        const double grad = grads[row * columns + c];
        sum += grad * weights[c];
        sum_normed += grad * weights[c] * normed(c);
        expected_dweight[c] += grad * normed(c);
        expected_dbias[c] += grad;
      }
      for (size_t c = 0; c < columns; ++c) {
        const double centered = grads[row * columns + c] * weights[c] -
                                (sum + normed(c) * sum_normed) / static_cast<double>(C);
        expected_dx[row * columns + c] += centered * r;
      }
    }
    kernels().Run(op::LayerNormBackward{dx.get(), dweight.get(), dbias.get(), dy.get(), x.get(),
                                        weight.get(), mean.get(), rstd.get(), kN, C, true});
    ExpectClose(dx, expected_dx, dtype(), 4);
    ExpectClose(dweight, expected_dweight, dtype(), 4);
    ExpectClose(dbias, expected_dbias, dtype(), 4);
  }
}

}  // namespace
}  // namespace dsat::engine
