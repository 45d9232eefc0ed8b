// The factor of a step's updates: what it is, and what updates do with it.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

// On every backend squares are added in the same order.
TEST_P(KernelsTest, TheScaleOfAStepClipsAndSkips) {
  constexpr int64_t kRows = 3, kCols = 200;
  Doubles squares = Random(21).Normal(DType::kF32, kRows * kCols).Values();
  for (double& x : squares)
    x *= x;
  const auto find = [&](Kernels& kernels, const ClipSettings& settings) {
    StepScale scale;
    kernels.Run(op::FindStepScale{&scale, squares.data(), kRows, kCols, settings});
    return scale;
  };
  const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0) / 4) * 0.5;
  const ClipSettings settings = {
      .mean_factor = 0.5, .divisor = 4, .max_norm = 0.25, .skips_overflow = true};
  const StepScale scale = find(kernels(), settings);
  EXPECT_NEAR(scale.grad_norm, norm, 1e-12 * norm);
  EXPECT_EQ(scale.grad_norm, find(*MakeCpuKernels(1), settings).grad_norm);
  EXPECT_FLOAT_EQ(scale.grad_scale, static_cast<float>(0.25 / norm * 0.5));
  EXPECT_EQ(scale.skips, 0);
  EXPECT_EQ(find(kernels(), {.mean_factor = 0.5}).grad_scale, 0.5F);
  for (const double overflow : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    squares[300] = overflow;
    EXPECT_EQ(find(kernels(), settings).skips, 1);
    EXPECT_EQ(find(kernels(), {}).skips, 0);
  }
}

// The operands of an update of a skipped step, whose gradients are NaN.
struct SkippedUpdate {
  explicit SkippedUpdate(DType dtype)
      : param(dtype, {1, 2, 3}),
        master(DType::kF32, {1, 2, 3}),
        grad(TestTensor::Poisoned(dtype, 3)),
        m(DType::kF32, {4, 5, 6}),
        v(DType::kF32, {7, 8, 9}) {}
  AdamArgs Args() {
    AdamArgs args{.param = param.get(), .master = master.get(), .grad = grad.get()};
    args.m = m.get();
    args.v = v.get();
    args.lr = args.weight_decay = 1;
    args.scale = &scale;
    return args;
  }
  void ExpectUntouched() const {
    EXPECT_EQ(param.Values(), Doubles({1, 2, 3}));
    EXPECT_EQ(master.Values(), Doubles({1, 2, 3}));
    EXPECT_EQ(m.Values(), Doubles({4, 5, 6}));
    EXPECT_EQ(v.Values(), Doubles({7, 8, 9}));
  }

  StepScale scale{.grad_norm = std::nan(""), .grad_scale = 1, .skips = 1};
  TestTensor param, master, grad, m, v;
};

TEST_P(KernelsTest, UpdatesOfASkippedStepWriteNothing) {
  SkippedUpdate update(dtype());
  const AdamArgs a = update.Args();
  kernels().Run(op::AdamStep{a});
  update.ExpectUntouched();
  kernels().Run(op::MomentumStep{a});
  update.ExpectUntouched();
  LambSums sums;
  kernels().Run(op::LambMoments{a, &sums});
  update.ExpectUntouched();
  op::SgdStep sgd{.param = a.param, .master = a.master, .grad = a.grad, .momentum_buffer = a.m};
  sgd.lr = sgd.momentum = 0.5F;
  sgd.scale = a.scale;
  kernels().Run(sgd);
  update.ExpectUntouched();
  kernels().Run(op::AdagradStep{
      .param = a.param, .master = a.master, .grad = a.grad, .sum = a.v, .lr = 1, .scale = a.scale});
  update.ExpectUntouched();
  kernels().Run(op::LionStep{
      .param = a.param, .master = a.master, .grad = a.grad, .m = a.m, .lr = 1, .scale = a.scale});
  update.ExpectUntouched();
  // The same update of a step that is not skipped writes.
  update.scale.skips = 0;
  kernels().Run(op::AdamStep{a});
  EXPECT_TRUE(std::isnan(update.master.Values()[0]));
}

}  // namespace
}  // namespace dsat::engine
