// Layer normalisation and attention against formulas in double; their gradients against numeric
// derivatives of those formulas.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/kernels_testing.h"

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
  kernels().LayerNormForward(y.get(), mean.get(), rstd.get(), x_.get(), weight_.get(), bias_.get(),
                             kN, kC);
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
  kernels().LayerNormForward(y.get(), mean.get(), rstd.get(), x.get(), weight_.get(), bias_.get(),
                             1, kC);
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
    kernels().LayerNormBackward(dx.get(), dweight.get(), dbias.get(), dy_.get(), x_.get(),
                                weight_.get(), mean_.get(), rstd_.get(), kN, kC, accumulate);
    ExpectGradient(dx, expected_dx, dtype());
    ExpectGradient(dweight, expected_dweight, dtype(), 5);
    ExpectGradient(dbias, expected_dbias, dtype(), 5);
  }
}

struct AttentionOutput {
  Doubles out, lse;
};

// Softmax(QK^T / sqrt(hd)) V, one query after the other.
AttentionOutput Attention(const Doubles& qkv, const AttentionShape& s) {
  const int64_t hd = s.C / s.H;
  AttentionOutput result{Doubles(static_cast<size_t>(s.B * s.T * s.C), 0.0), {}};
  const int64_t group = s.H / s.KvHeads();
  const auto at = [&](int64_t b, int64_t t, int64_t part, int64_t h, int64_t c) {
    const int64_t head = part == 0 ? h * hd : s.C + (part - 1) * s.KvChannels() + h / group * hd;
    return qkv[static_cast<size_t>((b * s.T + t) * s.QkvChannels() + head + c)];
  };
  for (int64_t i = 0; i < s.B * s.H * s.T; ++i) {
    const int64_t b = i / (s.H * s.T), h = i / s.T % s.H, t = i % s.T;
    Doubles p;
    double sum = 0;
    for (int64_t j = 0; j <= t; ++j) {
      double score = 0;
      for (int64_t c = 0; c < hd; ++c)
        score += at(b, t, 0, h, c) * at(b, j, 1, h, c);
      p.push_back(std::exp(score / std::sqrt(static_cast<double>(hd))));
      sum += p.back();
    }
    result.lse.push_back(std::log(sum));
    for (int64_t c = 0; c < hd; ++c) {
      double& out = result.out[static_cast<size_t>((b * s.T + t) * s.C + h * hd + c)];
      for (int64_t j = 0; j <= t; ++j)
        out += p[static_cast<size_t>(j)] / sum * at(b, j, 2, h, c);
    }
  }
  return result;
}

// Odd sizes; a sequence of two tiles; one query; heads of keys that serve several of queries.
const std::vector<AttentionShape>& AttentionShapes() {
  static const auto* shapes = new std::vector<AttentionShape>{
      {.B = 2, .T = 7, .C = 15, .H = 3},         {.B = 1, .T = 150, .C = 10, .H = 2},
      {.B = 3, .T = 1, .C = 4, .H = 1},          {.B = 1, .T = 256, .C = 3, .H = 1},
      {.B = 2, .T = 9, .C = 12, .H = 4, .G = 2}, {.B = 1, .T = 140, .C = 6, .H = 3, .G = 1}};
  return *shapes;
}

TEST_P(KernelsTest, AttentionForwardIsCausalSoftmax) {
  for (const AttentionShape& s : AttentionShapes()) {
    TestTensor qkv = Random(3).Normal(dtype(), s.B * s.T * s.QkvChannels());
    TestTensor out = TestTensor::Poisoned(dtype(), s.B * s.T * s.C);
    TestTensor lse = TestTensor::Poisoned(DType::kF32, s.B * s.H * s.T);
    TestTensor scratch = TestTensor::Poisoned(DType::kF32, kernels().AttentionScratchBytes(s) / 4);
    kernels().AttentionForward(out.get(), lse.get(), qkv.get(), scratch.get(), s);
    const AttentionOutput expected = Attention(qkv.Values(), s);
    // bf16: the probabilities are rounded too, by half of 2^-8 each.
    ExpectClose(out, expected.out, dtype(), dtype() == DType::kBF16 ? 500 : 1);
    ExpectClose(lse, expected.lse, DType::kF32);
  }
}

TEST_P(KernelsTest, AttentionBackwardIsTheDerivative) {
  for (const AttentionShape& s : AttentionShapes()) {
    Random random(4);
    TestTensor qkv = random.Normal(dtype(), s.B * s.T * s.QkvChannels());
    TestTensor dout = random.Normal(dtype(), s.B * s.T * s.C);
    const AttentionOutput saved = Attention(qkv.Values(), s);
    TestTensor out(dtype(), saved.out);
    TestTensor lse(DType::kF32, saved.lse);
    TestTensor dqkv = TestTensor::Poisoned(dtype(), s.B * s.T * s.QkvChannels());
    TestTensor scratch = TestTensor::Poisoned(DType::kF32, kernels().AttentionScratchBytes(s) / 4);
    kernels().AttentionBackward(dqkv.get(), dout.get(), out.get(), qkv.get(), lse.get(),
                                scratch.get(), s);
    const Doubles weights = dout.Values();
    // A prime stride meets q, k and v of every head; the short sequences are checked in full.
    const Doubles expected = NumericGradient(
        qkv.Values(), [&](const Doubles& x) { return Dot(weights, Attention(x, s).out); },
        s.T > 100 ? 31 : 1);
    // bf16: the saved output is rounded, and so is rowsum(dout * out).
    ExpectGradient(dqkv, expected, dtype(), dtype() == DType::kF32 ? 2 : 500);
    for (const double x : dqkv.Values())
      ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(KernelsTest, AttentionOfHugeScoresIsFinite) {
  const AttentionShape s{.B = 1, .T = 5, .C = 4, .H = 1};
  TestTensor qkv = Random(5).Normal(dtype(), s.T * 3 * s.C, 100);
  TestTensor out = TestTensor::Poisoned(dtype(), s.T * s.C);
  TestTensor lse = TestTensor::Poisoned(DType::kF32, s.T);
  TestTensor scratch = TestTensor::Poisoned(DType::kF32, kernels().AttentionScratchBytes(s) / 4);
  kernels().AttentionForward(out.get(), lse.get(), qkv.get(), scratch.get(), s);
  for (const double x : out.Values())
    EXPECT_TRUE(std::isfinite(x));
  for (const double x : lse.Values())
    EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace dsat::engine
