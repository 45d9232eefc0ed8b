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

}  // namespace
}  // namespace dsat::engine
