// Compares matrix multiplications with three loops in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

struct Shape {
  int64_t M, N, K;
};

enum class Addend { kNone, kInPlace, kOther };
enum class Extra { kNone, kGelu, kGeluGradient, kColumnSums };

// One product; a, b, c and bias may differ in dtype.
struct Product {
  Shape shape;
  bool transpose_a = false, transpose_b = false, bias = false;
  Addend addend = Addend::kNone;
  Extra extra = Extra::kNone;
  DType a = DType::kF32, b = DType::kF32, c = DType::kF32, bias_type = DType::kF32;

  std::string Name() const {
    return fmt::format("{}x{}x{} ta={} tb={} bias={} addend={} extra={} {} {} {} {}", shape.M,
                       shape.N, shape.K, transpose_a, transpose_b, bias, static_cast<int>(addend),
                       static_cast<int>(extra), DTypeName(a), DTypeName(b), DTypeName(c),
                       DTypeName(bias_type));
  }
};

// op(a) op(b) + bias + addend, and the sizes of what may be rounded on the way to it: on a GPU the
// product, and its sum with the bias or the addend.
struct Sums {
  Doubles values, rounded;
};
Sums SumsOf(const Product& p, const Doubles& a, const Doubles& b, const Doubles& bias,
            const Doubles& addend) {
  const bool rounds_early = TestDeviceKind() == DeviceKind::kCuda;
  const auto [M, N, K] = p.shape;
  Sums sums;
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double product = 0;
      for (int64_t k = 0; k < K; ++k) {
        const double left = a[static_cast<size_t>(p.transpose_a ? k * M + m : m * K + k)];
        const double right = b[static_cast<size_t>(p.transpose_b ? n * K + k : k * N + n)];
        product += left * right;
      }
      const double more = p.bias ? bias[static_cast<size_t>(n)] : 0;
      const double other = p.addend == Addend::kNone ? 0 : addend[static_cast<size_t>(m * N + n)];
      sums.values.push_back(product + more + other);
      sums.rounded.push_back(rounds_early ? std::abs(product) + std::max(std::abs(product + more),
                                                                         std::abs(product + other))
                                          : 0);
    }
  }
  return sums;
}

// As ExpectClose, where a number of the size `rounded` was rounded to `dtype` on the way; GELU,
// whose slope is below 1.13, may have followed.
void ExpectNear(const TestTensor& actual, const Doubles& expected, const Doubles& rounded,
                DType dtype, double magnitude) {
  const Doubles values = actual.Values();
  ASSERT_EQ(values.size(), expected.size());
  const double relative = RelativeTolerance(dtype, 1e-5);
  for (size_t i = 0; i < values.size(); ++i) {
    const double size = std::abs(expected[i]) + 1.13 * std::abs(rounded[i]);
    ASSERT_NEAR(values[i], expected[i], relative * size + 2e-5 * magnitude) << "at " << i;
  }
}

void CheckProduct(Kernels& kernels, const Product& p) {
  SCOPED_TRACE(p.Name());
  const auto [M, N, K] = p.shape;
  Random random(1);
  TestTensor a = random.Normal(p.a, M * K);
  TestTensor b = random.Normal(p.b, K * N);
  TestTensor bias = random.Normal(p.bias_type, N);
  TestTensor addend = random.Normal(p.c, M * N), gelu_input = random.Normal(p.c, M * N);
  TestTensor column_sums = random.Normal(p.b, N);
  TestTensor before_gelu = TestTensor::Poisoned(p.c, M * N);
  TestTensor poisoned = TestTensor::Poisoned(p.c, M * N);
  TestTensor& c = p.addend == Addend::kInPlace ? addend : poisoned;
  const auto [sums, rounded] = SumsOf(p, a.Values(), b.Values(), bias.Values(), addend.Values());
  Doubles expected = sums, columns = column_sums.Values(), column = Doubles(columns.size());

  op::Matmul args{.M = M, .N = N, .K = K, .a = a.get(), .b = b.get(), .c = c.get()};
  args.transpose_a = p.transpose_a;
  args.transpose_b = p.transpose_b;
  if (p.bias) args.bias = bias.get();
  if (p.addend != Addend::kNone) args.addend = addend.get();
  const Doubles inputs = gelu_input.Values(), b_values = b.Values();
  switch (p.extra) {
    case Extra::kNone:
      break;
    case Extra::kGelu:
      args.before_gelu = before_gelu.get();
      std::transform(sums.begin(), sums.end(), expected.begin(), Gelu);
      break;
    case Extra::kGeluGradient:
      args.gelu_input = gelu_input.get();
      expected = Zip(sums, inputs, [](double sum, double x) { return sum * GeluSlope(x); });
      break;
    case Extra::kColumnSums:
      args.column_sums = column_sums.get();
      for (size_t i = 0; i < b_values.size(); ++i)
        column[i % column.size()] += b_values[i];
      columns = Zip(columns, column, std::plus<>());
      break;
  }
  kernels.Run(args);
  const double magnitude = std::sqrt(static_cast<double>(K));
  Doubles all_rounded = rounded;
  const bool has_gelu = p.extra == Extra::kGelu || p.extra == Extra::kGeluGradient;
  if (has_gelu) {
    all_rounded = Zip(rounded, sums, [](double size, double sum) { return size + std::abs(sum); });
  }
  ExpectNear(c, expected, all_rounded, p.c, has_gelu ? magnitude : magnitude / 2);
  if (p.extra == Extra::kGelu) ExpectNear(before_gelu, sums, rounded, p.c, magnitude / 2);
  if (p.extra != Extra::kColumnSums) return;
  // In whichever of the two types the sums were rounded first.
  const bool wide = RelativeTolerance(p.c, 1e-5) < RelativeTolerance(p.b, 1e-5);
  ExpectNear(column_sums, columns, column, wide ? p.b : p.c, magnitude);
}

// Every combination of `product` with what goes with a product; or one of each kind.
template <typename Fn>
void ForEachFlags(Product product, const Fn& fn) {
  for (int flags = 0; flags < 96; ++flags) {
    product.transpose_a = flags % 2 != 0;
    product.transpose_b = flags / 2 % 2 != 0;
    product.bias = flags / 4 % 2 != 0;
    product.addend = static_cast<Addend>(flags / 8 % 3);
    product.extra = static_cast<Extra>(flags / 24);
    if (product.transpose_b && product.extra == Extra::kColumnSums) continue;
    fn(product);
  }
}
template <typename Fn>
void ForSomeFlags(Product product, const Fn& fn) {
  int i = 0;
  ForEachFlags(product, [&](const Product& next) {
    if (i++ % 5 == 0) fn(next);
  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, KernelsTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

TEST_P(KernelsTest, MatmulIsRightForAllFlagsAndOddShapes) {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{17, 33, 19}, Shape{64, 96, 32},
                             Shape{1, 130, 65}, Shape{129, 1, 31}}) {
    const Product product = {
        .shape = shape, .a = dtype(), .b = dtype(), .c = dtype(), .bias_type = dtype()};
    ForEachFlags(product, [&](const Product& p) { CheckProduct(kernels(), p); });
  }
}

// Several tiles in both directions, with smaller tiles at the edges.
TEST_P(KernelsTest, MatmulIsRightForManyTiles) {
  const Product product = {
      .shape = {275, 1050, 9}, .a = dtype(), .b = dtype(), .c = dtype(), .bias_type = dtype()};
  ForSomeFlags(product, [&](const Product& p) { CheckProduct(kernels(), p); });
}

TEST_P(KernelsTest, MatmulTakesAnyMixOfDTypes) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (const DType a : kDTypes) {
    for (const DType b : kDTypes) {
      for (const DType c : kDTypes) {
        const Product product = {
            .shape = {21, 40, 18}, .a = a, .b = b, .c = c, .bias_type = dtype()};
        ForSomeFlags(product, [&](const Product& p) { CheckProduct(kernels(), p); });
      }
    }
  }
}

// A sum of 4096 ones and one 2^-9: bf16 could not count that far.
TEST_P(KernelsTest, MatmulSumsInF32) {
  constexpr int64_t kK = 4096;
  TestTensor ones(dtype(), Doubles(kK, 1.0));
  TestTensor c = TestTensor::Poisoned(DType::kF32, 1);
  kernels().Run(
      op::Matmul{.M = 1, .N = 1, .K = kK, .a = ones.get(), .b = ones.get(), .c = c.get()});
  EXPECT_EQ(c.Values()[0], 4096);
}

TEST_P(KernelsTest, MatmulOfNoRowsDoesNothing) {
  TestTensor b = TestTensor::Zeros(dtype(), 12);
  TestTensor none(dtype(), {});
  kernels().Run(op::Matmul{.M = 0, .N = 4, .K = 3, .a = none.get(), .b = b.get(), .c = none.get()});
  EXPECT_EQ(kernels().flops(), 0);
}

TEST_P(KernelsTest, MatmulCountsTwoMNK) {
  int64_t flops = 0;
  ForEachFlags({.shape = {3, 5, 7}}, [&](const Product& p) {
    CheckProduct(kernels(), p);
    flops += 2 * 3 * 5 * 7;
    EXPECT_EQ(kernels().flops(), flops);
  });
}

// The bias of a layer of many rows.
TEST_P(KernelsTest, MatmulAddsLongColumnSums) {
  CheckProduct(kernels(), {.shape = {4, 517, 300},
                           .transpose_a = true,
                           .addend = Addend::kInPlace,
                           .extra = Extra::kColumnSums,
                           .a = dtype(),
                           .b = dtype(),
                           .c = dtype()});
}

TEST(MatmulDeathTest, WhatDoesNotFitTheProductEndsTheProgram) {
  const Tensor x{nullptr, 12, DType::kBF16}, short_x{nullptr, 11, DType::kBF16};
  const Tensor wide{nullptr, 12, DType::kF32};
  const op::Matmul good{.M = 3, .N = 4, .K = 3, .a = x, .b = x, .c = x};
  CheckOp(good);
  const auto expect_death = [&](Tensor op::Matmul::*field, const Tensor& tensor,
                                const char* message = "3 x 4 x 3") {
    op::Matmul args = good;
    args.*field = tensor;
    EXPECT_DEATH(CheckOp(args), message);
  };
  expect_death(&op::Matmul::c, short_x, "Matmul: c has 11 elements; expected 12");
  expect_death(&op::Matmul::bias, {nullptr, 3, DType::kF32}, "Matmul: bias has 3");
  expect_death(&op::Matmul::addend, wide);
  expect_death(&op::Matmul::before_gelu, short_x, "Matmul: before_gelu has 11");
  expect_death(&op::Matmul::gelu_input, wide);
  expect_death(&op::Matmul::column_sums, wide);
  op::Matmul both = good;
  both.before_gelu = both.gelu_input = x;
  EXPECT_DEATH(CheckOp(both), "");
  op::Matmul rows = good;
  rows.transpose_b = true;
  rows.column_sums = x;
  EXPECT_DEATH(CheckOp(rows), "");
}

}  // namespace
}  // namespace dsat::engine
