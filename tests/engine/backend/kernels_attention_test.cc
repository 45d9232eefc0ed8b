// Attention against formulas in double, which numeric derivatives confirm.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

struct AttentionOutput {
  Doubles out, lse;
};

// Where channel c of query head h (part 0), or of the keys (1) or values (2) it sees, is in qkv.
size_t QkvIndex(const AttentionShape& s, int64_t b, int64_t t, int64_t part, int64_t h, int64_t c) {
  const int64_t hd = s.HeadChannels(), group = s.H / s.KvHeads();
  const int64_t head = part == 0 ? h * hd : s.C + (part - 1) * s.KvChannels() + h / group * hd;
  return static_cast<size_t>((b * s.T + t) * s.QkvChannels() + head + c);
}

// Softmax(QK^T / sqrt(hd)) V, one query after the other.
AttentionOutput Attention(const Doubles& qkv, const AttentionShape& s) {
  const int64_t hd = s.C / s.H;
  AttentionOutput result{Doubles(static_cast<size_t>(s.B * s.T * s.C), 0.0), {}};
  const auto at = [&](int64_t b, int64_t t, int64_t part, int64_t h, int64_t c) {
    return qkv[QkvIndex(s, b, t, part, h, c)];
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

// The gradient of Dot(dout, out) by the chain rule, one query after the other.
Doubles AttentionGradient(const Doubles& qkv, const Doubles& dout, const AttentionShape& s) {
  const int64_t hd = s.HeadChannels();
  const double scale = 1 / std::sqrt(static_cast<double>(hd));
  const AttentionOutput saved = Attention(qkv, s);
  Doubles gradient(qkv.size(), 0.0);
  for (int64_t i = 0; i < s.B * s.H * s.T; ++i) {
    const int64_t b = i / (s.H * s.T), h = i / s.T % s.H, t = i % s.T;
    const auto at = [&](int64_t row, int64_t part, int64_t c) {
      return QkvIndex(s, b, row, part, h, c);
    };
    const auto out = static_cast<size_t>((b * s.T + t) * s.C + h * hd);
    double delta = 0;
    for (size_t c = 0; c < static_cast<size_t>(hd); ++c)
      delta += dout[out + c] * saved.out[out + c];
    for (int64_t j = 0; j <= t; ++j) {
      double score = 0, dp = 0;
      for (int64_t c = 0; c < hd; ++c) {
        score += qkv[at(t, 0, c)] * qkv[at(j, 1, c)];
        dp += dout[out + static_cast<size_t>(c)] * qkv[at(j, 2, c)];
      }
      const double p = std::exp(score * scale - saved.lse[static_cast<size_t>(i)]);
      const double ds = p * (dp - delta) * scale;
      for (int64_t c = 0; c < hd; ++c) {
        gradient[at(t, 0, c)] += ds * qkv[at(j, 1, c)];
        gradient[at(j, 1, c)] += ds * qkv[at(t, 0, c)];
        gradient[at(j, 2, c)] += p * dout[out + static_cast<size_t>(c)];
      }
    }
  }
  return gradient;
}

TEST(AttentionGradientTest, IsTheNumericDerivative) {
  for (const AttentionShape& s : {AttentionShape{.B = 2, .T = 5, .C = 12, .H = 4, .G = 2},
                                  AttentionShape{.B = 1, .T = 20, .C = 8, .H = 1}}) {
    Random random(4);
    const Doubles qkv = random.Normal(s.B * s.T * s.QkvChannels());
    const Doubles dout = random.Normal(s.B * s.T * s.C);
    const Doubles actual = AttentionGradient(qkv, dout, s);
    const Doubles expected =
        NumericGradient(qkv, [&](const Doubles& x) { return Dot(dout, Attention(x, s).out); });
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_NEAR(actual[i], expected[i], 1e-8) << "at " << i;
  }
}

// Odd sizes; a sequence of two tiles; one query; heads of keys that serve several of queries. Then
// heads that tensor cores take, of 64, 128 and 32 channels, and between: sequences of several tiles
// with a ragged end, and short ones.
constexpr AttentionShape kAttentionShapes[] = {{.B = 2, .T = 7, .C = 15, .H = 3},
                                               {.B = 1, .T = 150, .C = 10, .H = 2},
                                               {.B = 3, .T = 1, .C = 4, .H = 1},
                                               {.B = 1, .T = 256, .C = 3, .H = 1},
                                               {.B = 2, .T = 9, .C = 12, .H = 4, .G = 2},
                                               {.B = 1, .T = 140, .C = 6, .H = 3, .G = 1},
                                               {.B = 1, .T = 261, .C = 64, .H = 1},
                                               {.B = 1, .T = 197, .C = 128, .H = 1},
                                               {.B = 2, .T = 71, .C = 256, .H = 4, .G = 2},
                                               {.B = 1, .T = 67, .C = 256, .H = 2, .G = 1},
                                               {.B = 1, .T = 130, .C = 64, .H = 2},
                                               {.B = 2, .T = 33, .C = 288, .H = 3, .G = 1},
                                               {.B = 1, .T = 3, .C = 48, .H = 2},
                                               {.B = 1, .T = 128, .C = 64, .H = 1}};

// Products of rounded probabilities, or of rounded gradients of scores, are off by half a unit of
// each of their terms: what is due to the largest one of either.
double Magnitude(DType dtype, double bf16) {
  return dtype == DType::kF32 ? 2 : (dtype == DType::kF16 ? bf16 / 8 : bf16);
}

TestTensor ScratchFor(Kernels& kernels, const AttentionShape& s) {
  return TestTensor::Poisoned(DType::kF32, kernels.AttentionScratchBytes(s) / 4);
}

struct AttentionTensors {
  TestTensor out, lse;
};

AttentionTensors RunForward(Kernels& kernels, DType dtype, TestTensor& qkv,
                            const AttentionShape& s) {
  AttentionTensors tensors{TestTensor::Poisoned(dtype, s.B * s.T * s.C),
                           TestTensor::Poisoned(DType::kF32, s.B * s.H * s.T)};
  TestTensor scratch = ScratchFor(kernels, s);
  kernels.Run(
      op::AttentionForward{tensors.out.get(), tensors.lse.get(), qkv.get(), scratch.get(), s});
  return tensors;
}

TEST_P(KernelsTest, AttentionForwardIsCausalSoftmax) {
  for (const AttentionShape& s : kAttentionShapes) {
    TestTensor qkv = Random(3).Normal(dtype(), s.B * s.T * s.QkvChannels());
    const auto [out, lse] = RunForward(kernels(), dtype(), qkv, s);
    const AttentionOutput expected = Attention(qkv.Values(), s);
    ExpectClose(out, expected.out, dtype(), Magnitude(dtype(), 500));
    ExpectClose(lse, expected.lse, DType::kF32);
  }
}

TEST_P(KernelsTest, AttentionBackwardIsTheDerivative) {
  for (const AttentionShape& s : kAttentionShapes) {
    Random random(4);
    TestTensor qkv = random.Normal(dtype(), s.B * s.T * s.QkvChannels());
    TestTensor dout = random.Normal(dtype(), s.B * s.T * s.C);
    const AttentionOutput saved = Attention(qkv.Values(), s);
    TestTensor out(dtype(), saved.out);
    TestTensor lse(DType::kF32, saved.lse);
    TestTensor dqkv = TestTensor::Poisoned(dtype(), s.B * s.T * s.QkvChannels());
    TestTensor scratch = ScratchFor(kernels(), s);
    kernels().Run(op::AttentionBackward{dqkv.get(), dout.get(), out.get(), qkv.get(), lse.get(),
                                        scratch.get(), s});
    ExpectGradient(dqkv, AttentionGradient(qkv.Values(), dout.Values(), s), dtype(),
                   Magnitude(dtype(), 1000));
  }
}

// More than a grid of CUDA has in its second and third dimension. A token alone sees itself.
TEST_P(KernelsTest, AttentionTakesAnyNumberOfSequences) {
  if (dtype() != DType::kBF16) return;  // It takes some seconds on the emulated GPU.
  constexpr int64_t kC = 4;
  constexpr AttentionShape kMany{.B = 65537, .T = 1, .C = kC, .H = 1};
  TestTensor qkv = Random(7).Normal(dtype(), kMany.B * 3 * kC);
  auto [out, lse] = RunForward(kernels(), dtype(), qkv, kMany);
  TestTensor scratch = ScratchFor(kernels(), kMany);
  TestTensor dqkv = TestTensor::Poisoned(dtype(), kMany.B * 3 * kC);
  kernels().Run(op::AttentionBackward{dqkv.get(), out.get(), out.get(), qkv.get(), lse.get(),
                                      scratch.get(), kMany});
  const Doubles in = qkv.Values(), attended = out.Values(), grad = dqkv.Values();
  for (const size_t b : {0, 65534, 65535, 65536}) {
    const size_t value = (3 * b + 2) * kC;  // The sequence's value, behind its query and its key.
    for (size_t c = 0; c < kC; ++c) {
      EXPECT_NEAR(attended[b * kC + c], in[value + c], 0.01 * std::abs(in[value + c])) << b;
      EXPECT_NEAR(grad[value + c], in[value + c], 0.01 * std::abs(in[value + c])) << b;
      EXPECT_NEAR(grad[3 * b * kC + c], 0, 0.05) << b;
    }
  }
}

// Sequences of a batch, and heads, know nothing of each other: exactly, in any place of them.
TEST_P(KernelsTest, AttentionOfASequenceIsThatOfItAlone) {
  constexpr AttentionShape kTwo{.B = 2, .T = 37, .C = 128, .H = 2, .G = 1};
  AttentionShape one = kTwo;
  one.B = 1;
  const auto run = [&](const Doubles& values, const AttentionShape& s) {
    TestTensor qkv(dtype(), values);
    return RunForward(kernels(), dtype(), qkv, s).out.Values();
  };
  const Doubles both = Random(6).Normal(2 * kTwo.T * kTwo.QkvChannels());
  const auto half = static_cast<int64_t>(both.size()) / 2;
  Doubles outs = run({both.begin(), both.begin() + half}, one);
  const Doubles second = run({both.begin() + half, both.end()}, one);
  outs.insert(outs.end(), second.begin(), second.end());
  EXPECT_EQ(run(both, kTwo), outs);
}

TEST_P(KernelsTest, AttentionOfHugeScoresIsFinite) {
  const AttentionShape s{.B = 1, .T = 5, .C = 4, .H = 1};
  TestTensor qkv = Random(5).Normal(dtype(), s.T * 3 * s.C, 100);
  const auto [out, lse] = RunForward(kernels(), dtype(), qkv, s);
  for (const double x : out.Values())
    EXPECT_TRUE(std::isfinite(x));
  for (const double x : lse.Values())
    EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace dsat::engine
