// Matrix products against three loops in double.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/engine/kernels_testing.h"

namespace dsat::engine {
namespace {

struct Shape {
  int64_t M, N, K;
};

// One product; a, b, c and bias may differ in dtype.
struct Product {
  Shape shape;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType a = DType::kF32, b = DType::kF32, c = DType::kF32, bias_type = DType::kF32;

  std::string Name() const {
    return fmt::format("{}x{}x{} ta={} tb={} accumulate={} bias={} {} {} {} {}", shape.M, shape.N,
                       shape.K, transpose_a, transpose_b, accumulate, bias, DTypeName(a),
                       DTypeName(b), DTypeName(c), DTypeName(bias_type));
  }
};

Doubles Reference(const Product& p, const Doubles& a, const Doubles& b, const Doubles& bias,
                  const Doubles& c_before) {
  const auto [M, N, K] = p.shape;
  Doubles c(static_cast<size_t>(M * N));
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double sum = p.accumulate ? c_before[static_cast<size_t>(m * N + n)] : 0;
      if (p.bias) sum += bias[static_cast<size_t>(n)];
      for (int64_t k = 0; k < K; ++k) {
        const double left = a[static_cast<size_t>(p.transpose_a ? k * M + m : m * K + k)];
        const double right = b[static_cast<size_t>(p.transpose_b ? n * K + k : k * N + n)];
        sum += left * right;
      }
      c[static_cast<size_t>(m * N + n)] = sum;
    }
  }
  return c;
}

void CheckProduct(Kernels& kernels, const Product& p) {
  SCOPED_TRACE(p.Name());
  const auto [M, N, K] = p.shape;
  Random random(1);
  TestTensor a = random.Normal(p.a, M * K);
  TestTensor b = random.Normal(p.b, K * N);
  TestTensor bias = random.Normal(p.bias_type, N);
  TestTensor c = p.accumulate ? random.Normal(p.c, M * N) : TestTensor::Poisoned(p.c, M * N);
  const Doubles expected = Reference(p, a.Values(), b.Values(), bias.Values(), c.Values());
  MatmulArgs args{.M = M, .N = N, .K = K, .a = a.get(), .b = b.get(), .c = c.get()};
  args.transpose_a = p.transpose_a;
  args.transpose_b = p.transpose_b;
  args.accumulate = p.accumulate;
  if (p.bias) args.bias = bias.get();
  kernels.Matmul(args);
  ExpectClose(c, expected, p.c, std::sqrt(static_cast<double>(K)));
}

// All 16 combinations of the flags.
template <typename Fn>
void ForEachFlags(const Fn& fn) {
  for (int flags = 0; flags < 16; ++flags) {
    fn((flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, (flags & 8) != 0);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, KernelsTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

TEST_P(KernelsTest, MatmulIsRightForAllFlagsAndOddShapes) {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{17, 33, 19}, Shape{64, 96, 32},
                             Shape{1, 130, 65}, Shape{129, 1, 31}}) {
    ForEachFlags([&](bool ta, bool tb, bool accumulate, bool bias) {
      CheckProduct(kernels(),
                   {shape, ta, tb, accumulate, bias, dtype(), dtype(), dtype(), dtype()});
    });
  }
}

// Several tiles in both directions, with smaller tiles at the edges.
TEST_P(KernelsTest, MatmulIsRightForManyTiles) {
  ForEachFlags([&](bool ta, bool tb, bool accumulate, bool bias) {
    CheckProduct(kernels(),
                 {{275, 1050, 9}, ta, tb, accumulate, bias, dtype(), dtype(), dtype(), dtype()});
  });
}

TEST_P(KernelsTest, MatmulTakesAnyMixOfDTypes) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (const DType a : kDTypes) {
    for (const DType b : kDTypes) {
      for (const DType c : kDTypes) {
        ForEachFlags([&](bool ta, bool tb, bool accumulate, bool bias) {
          CheckProduct(kernels(), {{21, 35, 18}, ta, tb, accumulate, bias, a, b, c, dtype()});
        });
      }
    }
  }
}

// A sum of 4096 ones and one 2^-9: bf16 could not count that far.
TEST_P(KernelsTest, MatmulSumsInF32) {
  constexpr int64_t kK = 4096;
  TestTensor ones(dtype(), Doubles(kK, 1.0));
  TestTensor c = TestTensor::Poisoned(DType::kF32, 1);
  kernels().Matmul({.M = 1, .N = 1, .K = kK, .a = ones.get(), .b = ones.get(), .c = c.get()});
  EXPECT_EQ(c.Values()[0], 4096);
}

TEST_P(KernelsTest, MatmulOfNoRowsDoesNothing) {
  TestTensor b = TestTensor::Zeros(dtype(), 12);
  TestTensor none(dtype(), {});
  kernels().Matmul({.M = 0, .N = 4, .K = 3, .a = none.get(), .b = b.get(), .c = none.get()});
  EXPECT_EQ(kernels().flops(), 0);
}

TEST_P(KernelsTest, MatmulCountsTwoMNK) {
  CheckProduct(kernels(), {{3, 5, 7}, true, false, true, true, dtype(), dtype(), dtype(), dtype()});
  EXPECT_EQ(kernels().flops(), 2 * 3 * 5 * 7);
}

TEST_P(KernelsTest, BiasGradAddsColumnSums) {
  for (const auto& [M, N] : {std::pair<int64_t, int64_t>{1, 1}, {70, 3}, {300, 517}}) {
    Random random(2);
    TestTensor dy = random.Normal(dtype(), M * N);
    TestTensor db = random.Normal(dtype(), N);
    const Doubles before = db.Values();
    const Doubles values = dy.Values();
    Doubles expected = before;
    for (int64_t i = 0; i < M * N; ++i) {
      expected[static_cast<size_t>(i % N)] += values[static_cast<size_t>(i)];
    }
    kernels().BiasGrad(db.get(), dy.get(), M, N);
    ExpectClose(db, expected, dtype(), 10);
  }
}

}  // namespace
}  // namespace dsat::engine
