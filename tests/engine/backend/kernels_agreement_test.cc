// Backends and thread counts agree on bits, FLOPs and scratch sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "engine/backend/cost.h"
#include "engine/core/device_kind.h"
#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

// Every kernel once, on sizes that are cut into several pieces of work and divide by nothing.
class Everything {
 public:
  Everything(Kernels& kernels, DType dtype) : kernels_(kernels), dtype_(dtype) {}

  // Runs all of them. The results are in Results() afterwards.
  void Run() {
    RunElementwise();
    RunMatmul();
    RunLayerNorm();
    RunEmbedding();
    RunAttention();
    RunLlama();
    RunImages();
    RunLossAndOptimizers();
  }

  // The bytes of every tensor that was made, and every number that a kernel returned.
  std::vector<std::vector<char>> Results() const {
    std::vector<std::vector<char>> results;
    for (const TestTensor& t : tensors_)
      results.push_back(t.bytes());
    const char* numbers = reinterpret_cast<const char*>(numbers_.data());
    results.emplace_back(numbers, numbers + numbers_.size() * sizeof(double));
    return results;
  }
  const Doubles& numbers() const { return numbers_; }
  // No kernel wrote anything.
  bool Untouched() const {
    return std::equal(tensors_.begin(), tensors_.end(), initial_.begin(),
                      [](const TestTensor& t, const auto& bytes) { return t.bytes() == bytes; });
  }

 private:
  static constexpr int64_t kN = 301, kC = 260, kMany = 70001;
  static constexpr AttentionShape kAttention = {.B = 2, .T = 150, .C = 120, .H = 4};

  // Numbers in [-1, 1).
  Tensor New(DType dtype, int64_t n) {
    Doubles values(static_cast<size_t>(n));
    for (double& x : values)
      x = static_cast<double>(random_()) / (1 << 30) - 1;
    tensors_.emplace_back(dtype, values);
    initial_.push_back(tensors_.back().bytes());
    return tensors_.back().get();
  }
  Tensor New(int64_t n) { return New(dtype_, n); }
  std::vector<int32_t> NewTokens(int64_t n, int32_t V) { return Random(2).Tokens(n, V); }

  void RunElementwise() {
    kernels_.Run(op::Fill{New(kMany), 2});
    kernels_.Run(op::Cast{New(DType::kF32, kMany), New(kMany)});
    kernels_.Run(op::Accumulate{New(DType::kF32, kMany), New(kMany)});
    kernels_.Run(op::Scale{New(kMany), 0.7F});
    kernels_.Run(op::Add{New(kMany), New(kMany), New(kMany)});
    kernels_.Run(op::GeluForward{New(kMany), New(kMany)});
    kernels_.Run(op::GeluBackward{New(kMany), New(kMany), New(kMany)});
    kernels_.Run(op::ReluForward{New(kMany), New(kMany)});
    kernels_.Run(op::ReluBackward{New(kMany), New(kMany), New(kMany)});
    numbers_.push_back(0);
    kernels_.Run(op::SumOfSquares{&numbers_.back(), New(kMany)});
  }

  void RunMatmul() {
    constexpr int64_t kM = 275, kK = 36;  // Two tiles by two.
    for (int flags = 0; flags < 16; ++flags) {
      op::Matmul args{.M = kM, .N = 2 * kC, .K = kK};
      args.transpose_a = (flags & 1) != 0;
      args.transpose_b = (flags & 2) != 0;
      args.a = New(kM * kK);
      args.b = New(kK * 2 * kC);
      args.c = New(kM * 2 * kC);
      if ((flags & 4) != 0) args.addend = flags < 8 ? args.c : New(kM * 2 * kC);
      if ((flags & 8) != 0) args.bias = New(2 * kC);
      if (flags % 5 == 1) args.before_gelu = New(kM * 2 * kC);
      if (flags % 5 == 2) args.gelu_input = New(kM * 2 * kC);
      kernels_.Run(args);
    }
    // The gradient of a weight: few outputs, long sums.
    kernels_.Run(op::Matmul{.M = 90,
                            .N = 70,
                            .K = 3000,
                            .a = New(90 * 3000),
                            .b = New(70 * 3000),
                            .c = New(90 * 70),
                            .transpose_a = true,
                            .column_sums = New(70)});
    kernels_.Run(op::Matmul{.M = 9,
                            .N = 4 * kC,
                            .K = kN,
                            .a = New(9 * kN),
                            .b = New(kN * 4 * kC),
                            .c = New(9 * 4 * kC),
                            .column_sums = New(4 * kC)});
  }

  void RunLayerNorm() {
    const Tensor x = New(kN * kC), weight = New(kC);
    const Tensor mean = New(DType::kF32, kN), rstd = New(DType::kF32, kN);
    kernels_.Run(op::LayerNormForward{New(kN * kC), mean, rstd, x, weight, New(kC), kN, kC});
    kernels_.Run(op::LayerNormBackward{New(kN * kC), New(kC), New(kC), New(kN * kC), x, weight,
                                       mean, rstd, kN, kC, true});
  }

  void RunEmbedding() {
    constexpr int64_t kB = 7, kT = kN / kB;
    const std::vector<int32_t> tokens = NewTokens(kB * kT, 50);
    const Tensor y = New(kB * kT * kC);
    kernels_.Run(op::EmbeddingForward{y, tokens.data(), New(50 * kC), New(kT * kC), kB, kT, kC});
    kernels_.Run(op::EmbeddingBackward{New(50 * kC), New(kT * kC), y, tokens.data(), kB, kT, kC});
  }

  void RunAttention() {
    RunAttention(kAttention);
    AttentionShape grouped = kAttention;
    grouped.G = 2;
    RunAttention(grouped);
  }

  void RunAttention(const AttentionShape& s) {
    const int64_t n = s.B * s.T * s.C;
    TestTensor scratch = TestTensor::Poisoned(DType::kF32, kernels_.AttentionScratchBytes(s) / 4);
    const Tensor qkv = New(s.B * s.T * s.QkvChannels()), out = New(n),
                 lse = New(DType::kF32, s.B * s.H * s.T);
    kernels_.Run(op::AttentionForward{out, lse, qkv, scratch.get(), s});
    kernels_.Run(op::AttentionBackward{New(s.B * s.T * s.QkvChannels()), New(n), out, qkv, lse,
                                       scratch.get(), s});
  }

  void RunLlama() {
    const Tensor x = New(kN * kC), weight = New(kC), rstd = New(DType::kF32, kN);
    kernels_.Run(op::RmsNormForward{New(kN * kC), rstd, x, weight, kN, kC, 1e-5F});
    kernels_.Run(
        op::RmsNormBackward{New(kN * kC), New(kC), New(kN * kC), x, weight, rstd, kN, kC, true});
    kernels_.Run(op::SwigluForward{New(kN * kC), New(2 * kN * kC), kN, kC});
    kernels_.Run(op::SwigluBackward{New(2 * kN * kC), New(kN * kC), New(2 * kN * kC), kN, kC});
    constexpr int64_t kB = 7, kT = kN / kB;
    const std::vector<float> frequencies(13, 0.3F);
    kernels_.Run(
        op::RotateInPlace{New(kB * kT * kC),
                          frequencies,
                          false,
                          {.B = kB, .T = kT, .stride = kC, .heads = 9, .head_channels = 26}});
  }

  void RunImages() {
    const ConvShape s{.N = 11, .H = 18, .W = 17, .in = 24, .out = 32, .kernel = 3, .stride = 2};
    const Tensor x = New(s.NumIn()), dy = New(s.NumOut()), weight = New(s.NumWeights());
    kernels_.Run(op::ConvForward{New(s.NumOut()), x, weight, s});
    kernels_.Run(op::ConvInputGrad{New(s.NumIn()), dy, weight, s});
    kernels_.Run(op::ConvWeightGrad{New(s.NumWeights()), dy, x, s});
    const GroupNormShape norm{.N = s.N, .P = s.H * s.W, .C = s.in, .G = 4};
    const Tensor mean = New(DType::kF32, s.N * 4), rstd = New(DType::kF32, s.N * 4);
    kernels_.Run(op::GroupNormForward{New(s.NumIn()), mean, rstd, x, New(s.in), New(s.in), norm});
    kernels_.Run(op::GroupNormBackward{New(s.NumIn()), New(s.in), New(s.in), New(s.NumIn()), x,
                                       New(s.in), mean, rstd, norm});
    kernels_.Run(op::MeanPoolForward{New(s.N * s.in), x, s.N, s.H * s.W, s.in});
    kernels_.Run(op::MeanPoolBackward{New(s.NumIn()), New(s.N * s.in), s.N, s.H * s.W, s.in});
  }

  void RunLossAndOptimizers() {
    const std::vector<int32_t> targets = NewTokens(kN, kC);
    const Tensor logits = New(kN * 4 * kC);
    double& loss = numbers_.emplace_back(0);
    kernels_.Run(op::CrossEntropyInPlace{&loss, logits, targets.data(), kN, 4 * kC, 4 * kC - 3, 1});
    StepScale step_scale;
    const double squares[] = {loss, 2, 3, 4, 5, 6};
    kernels_.Run(op::FindStepScale{&step_scale, squares, 2, 3, {.mean_factor = 0.5}});
    numbers_.push_back(step_scale.grad_norm);
    const Tensor v = New(DType::kF32, kMany);
    kernels_.Run(op::Fill{v, 0.1F});
    kernels_.Run(op::AdamStep{{.param = New(kMany),
                               .master = New(DType::kF32, kMany),
                               .grad = New(kMany),
                               .m = New(DType::kF32, kMany),
                               .v = v,
                               .lr = 0.1F,
                               .weight_decay = 0.1F}});
    kernels_.Run(op::SgdStep{.param = New(kMany),
                             .master = New(DType::kF32, kMany),
                             .grad = New(kMany),
                             .momentum_buffer = New(DType::kF32, kMany),
                             .lr = 0.1F,
                             .momentum = 0.9F,
                             .step = 2});
    kernels_.Run(op::AdagradStep{.param = New(kMany),
                                 .master = New(DType::kF32, kMany),
                                 .grad = New(kMany),
                                 .sum = v,
                                 .lr = 0.1F});
    kernels_.Run(op::LionStep{.param = New(kMany),
                              .master = New(DType::kF32, kMany),
                              .grad = New(kMany),
                              .m = New(DType::kF32, kMany),
                              .lr = 0.1F});
    RunTwoPartOptimizers(v);
    if (dtype_ == DType::kBF16) RunBf16Adam();
  }

  // Without an f32 copy of the parameters.
  void RunBf16Adam() {
    for (const DType moment_dtype : {DType::kF32, DType::kBF16}) {
      const Tensor v = New(moment_dtype, kMany);
      kernels_.Run(op::Fill{v, 0.1F});
      AdamArgs args{.param = New(kMany), .master = New(kMany), .grad = New(kMany)};
      args.m = New(moment_dtype, kMany);
      args.v = v;
      args.lr = 0.1F;
      kernels_.Run(op::AdamStep{args});
      args.rounding = RoundingBits{.key = 3};
      kernels_.Run(op::AdamStep{args});
    }
  }

  void RunTwoPartOptimizers(const Tensor& v) {
    const AdamArgs args{.param = New(kMany),
                        .master = New(DType::kF32, kMany),
                        .grad = New(kMany),
                        .m = New(DType::kF32, kMany),
                        .v = v,
                        .lr = 0.1F};
    LambSums sums;
    kernels_.Run(op::LambMoments{args, &sums});
    numbers_.push_back(sums.param);
    numbers_.push_back(sums.direction);
    kernels_.Run(op::LambApply{args, 0.5F});
    kernels_.Run(op::MomentumStep{args});
    kernels_.Run(op::FrozenAdamStep{args});
    constexpr int64_t kEights = kMany / 8 * 8;
    const Tensor values = New(DType::kF32, kEights);
    const Tensor bits = New(DType::kF32, kEights / 32 + 1);
    auto* signs = static_cast<uint8_t*>(bits.data);
    const Tensor scale = New(DType::kF32, 1);
    kernels_.Run(op::CompressSigns{New(DType::kF32, kEights), signs, scale.f32(), values});
    kernels_.Run(op::DecompressSigns{values, signs, scale.f32(), 0.5F, true});
  }

  Kernels& kernels_;
  DType dtype_;
  std::minstd_rand random_{1};
  std::deque<TestTensor> tensors_;
  std::vector<std::vector<char>> initial_;  // The bytes of `tensors_` when they were made.
  Doubles numbers_;
};

TEST_P(KernelsTest, NumberOfThreadsDoesNotChangeABit) {
  const auto one = MakeCpuKernels(1);
  Everything expected(*one, dtype());
  expected.Run();
  for (const int num_threads : {2, 3, 7}) {
    const auto several = MakeCpuKernels(num_threads);
    Everything actual(*several, dtype());
    actual.Run();
    EXPECT_TRUE(actual.Results() == expected.Results()) << num_threads << " threads";
  }
}

TEST_P(KernelsTest, CountingBackendCountsTheSameAndTouchesNothing) {
  const auto counting = MakeCountingKernels(3);
  Everything expected(kernels(), dtype());
  expected.Run();
  Everything counted(*counting, dtype());
  counted.Run();
  EXPECT_EQ(counting->flops(), kernels().flops());
  EXPECT_EQ(counted.numbers(), Doubles(5, 0.0));
  EXPECT_TRUE(counted.Untouched());
  EXPECT_FALSE(expected.Untouched());
}

// Tensors without memory.
Tensor Null(int64_t num_elems) {
  return {nullptr, num_elems, DType::kBF16};
}

TEST(CountingTest, NullTensorsAreEnough) {
  const auto counting = MakeCountingKernels(1);
  const Tensor null = Null(1 << 20);
  counting->Run(op::Matmul{.M = 3, .N = 5, .K = 7, .a = null, .b = null, .c = null});
  EXPECT_EQ(counting->flops(), 2 * 3 * 5 * 7);
  counting->Run(op::LayerNormForward{null, null, null, null, null, null, 1024, 1024});
  counting->Run(op::SumOfSquares{nullptr, null});
  counting->Run(op::CrossEntropyInPlace{nullptr, null, nullptr, 4, 10, 10, 1});
  EXPECT_EQ(counting->flops(), 2 * 3 * 5 * 7);
}

TEST(CountingTest, AttentionCountsFullProducts) {
  const AttentionShape s{.B = 2, .T = 128, .C = 64, .H = 4};
  const Tensor x = Null(2 * 128 * 64), qkv = Null(3 * x.num_elems);
  const auto counting = MakeCountingKernels(1);
  counting->Run(op::AttentionForward{x, x, qkv, {}, s});
  EXPECT_EQ(counting->flops(), 4 * 2 * 128 * 128 * 64);
  counting->Run(op::AttentionBackward{qkv, x, x, qkv, x, {}, s});
  EXPECT_EQ(counting->flops(), 12 * 2 * 128 * 128 * 64);
}

TEST(CountingTest, ConvolutionsCountTheirTaps) {
  const ConvShape s{.N = 2, .H = 8, .W = 6, .in = 3, .out = 5, .kernel = 3, .stride = 2};
  const Tensor null = Null(1 << 10);
  const auto counting = MakeCountingKernels(1);
  counting->Run(op::ConvForward{null, null, null, s});
  EXPECT_EQ(counting->flops(), 2 * 2 * 4 * 3 * 5 * 3 * 9);
  counting->Run(op::ConvInputGrad{null, null, null, s});
  counting->Run(op::ConvWeightGrad{null, null, null, s});
  EXPECT_EQ(counting->flops(), 3 * 2 * 2 * 4 * 3 * 5 * 3 * 9);
}

TEST(CheckOpDeathTest, EveryBackendNamesTheKernelTheOperandAndItsSize) {
  const auto device = MakeTestDevice();
  const auto counting = MakeCountingKernels(1), real = device->MakeKernels();
  const Tensor x = Null(12), y = Null(11), f32 = {nullptr, 12, DType::kF32};
  op::LionStep lion{.param = x, .master = f32, .grad = x, .m = f32};
  counting->Run(lion);
  for (Kernels* kernels : {counting.get(), real.get()}) {
    EXPECT_DEATH(kernels->Run(op::Add{x, y, x}), "Add: a has 11 elements; expected 12");
    EXPECT_DEATH(kernels->Run(op::RmsNormForward{x, x, y, x, 3, 4, 1e-5F}),
                 "RmsNormForward: x has 11 elements; expected 12");
    EXPECT_DEATH(
        kernels->Run(op::GroupNormForward{x, x, x, x, x, x, {.N = 1, .P = 4, .C = 3, .G = 2}}),
        "3 channels, 2 groups");
    lion.m = x;
    EXPECT_DEATH(kernels->Run(lion), "optimizer state 12 of 12 elements");
    lion.m = {nullptr, 13, DType::kF32};
    EXPECT_DEATH(kernels->Run(lion), "optimizer state 13 of 12 elements");
  }
}

TEST(CountingTest, AttentionScratchIsThatOfTheCpuBackend) {
  for (const int num_threads : {1, 2, 16}) {
    for (const AttentionShape& s : {AttentionShape{1, 64, 32, 4}, AttentionShape{3, 1000, 60, 5},
                                    AttentionShape{1, 1, 1, 1}}) {
      EXPECT_EQ(MakeCountingKernels(num_threads)->AttentionScratchBytes(s),
                MakeCpuKernels(num_threads)->AttentionScratchBytes(s));
    }
  }
  // Two tiles of 128 queries by 1024 keys and seven slices of 1024 by 64, for each of two threads.
  EXPECT_EQ(CpuAttentionScratchBytes({.B = 1, .T = 1024, .C = 128, .H = 2}, 2),
            2 * 4 * (2 * 128 * 1024 + 7 * 1024 * 64));
  // Two heads never need more than two threads.
  EXPECT_EQ(CpuAttentionScratchBytes({.B = 1, .T = 1024, .C = 128, .H = 2}, 16),
            CpuAttentionScratchBytes({.B = 1, .T = 1024, .C = 128, .H = 2}, 2));
}

TEST(CountingTest, ScratchOnAGpuIsANumberForEachQueryOfEachHead) {
  const auto counting = MakeCountingKernels(2, DeviceKind::kCuda);
  EXPECT_EQ(counting->AttentionScratchBytes({.B = 3, .T = 1000, .C = 60, .H = 5}),
            3 * 1000 * 5 * 4);
  EXPECT_THROW(counting->AttentionScratchBytes({.B = 1, .T = 8, .C = 257, .H = 1}), Error);
  EXPECT_GT(counting->WorkspaceBytes(), MakeCountingKernels(2)->WorkspaceBytes());
}

}  // namespace
}  // namespace dsat::engine
