// Training on a GPU takes the epilogues that cuBLASLt has, and does without them where it has none.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tests/engine/backend/emulated_cuda/cublaslt.h"
#include "tests/engine/model/model_runner.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

constexpr std::array kEpilogues = {cublaslt::kAddBias, cublaslt::kGeluAux, cublaslt::kGeluAuxBias,
                                   cublaslt::kGeluGradient, cublaslt::kBiasGradientA};
using Counts = std::array<int64_t, kEpilogues.size()>;

struct Step {
  Counts counts = {};
  double loss = 0;
  std::vector<float> gradient;  // The gradient of a bias in the middle.
};

Step StepOf(Model model, DType dtype) {
  const RandomBatch batch(model, 2, 8);
  ModelRunner runner(std::move(model), Arena::Kind::kReal,
                     MakeRoundTripKernels(MakeTestDevice("emulated-cuda")), dtype, 0.02);
  // Once before: what a product may end in is measured first.
  runner.Forward(batch.view());
  runner.Backward();
  Counts before;
  std::transform(kEpilogues.begin(), kEpilogues.end(), before.begin(), emulated_cuda::NumProducts);
  Step step;
  step.loss = runner.Forward(batch.view());
  runner.Backward();
  for (size_t i = 0; i < kEpilogues.size(); ++i)
    step.counts[i] = emulated_cuda::NumProducts(kEpilogues[i]) - before[i];
  const Tensor gradient = runner.grad(1, 1);
  step.gradient.resize(static_cast<size_t>(gradient.num_elems));
  runner.kernels().Run(op::Cast{{step.gradient.data(), gradient.num_elems, DType::kF32}, gradient});
  return step;
}

TEST(EpilogueTest, Gpt2TakesThemAllInEveryBlock) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    // Two blocks of: qkv and two projections; fc; its gradient; four gradients of biases.
    EXPECT_EQ(StepOf(TinyGpt2(), dtype).counts, (Counts{6, 0, 2, 2, 8}));
  }
}

TEST(EpilogueTest, OtherModelsTakeTheGradientsOfTheirBiases) {
  EXPECT_EQ(StepOf(TinyMlp(), DType::kBF16).counts, (Counts{3, 0, 0, 0, 3}));
  EXPECT_EQ(StepOf(TinyLlama(), DType::kBF16).counts, (Counts{}));
}

TEST(EpilogueTest, WhatIsNotAlignedForOneIsDoneAfterTheProduct) {
  const auto device = MakeTestDevice("emulated-cuda");
  const auto kernels = device->MakeKernels();
  Arena arena("device memory", Arena::Kind::kReal, 0, &device->memory());
  std::vector<Buffer> buffers;
  // (8, 8), `offset` elements of two bytes behind the start of a block.
  const auto matrix = [&](int64_t offset) {
    buffers.push_back(arena.Allocate(DType::kBF16, 80, "a matrix"));
    const Tensor block = buffers.back().AsTensor(DType::kBF16);
    kernels->Run(op::Fill{block, 0.5F});
    return block.Slice(offset, 64);
  };
  using Offsets = std::pair<int64_t, int64_t>;  // The offsets of the bias and of GELU's input.
  for (const auto& [bias, input] : {Offsets{0, 0}, {0, 1}, {0, 8}, {1, 8}}) {
    const op::Matmul product = {.M = 8,
                                .N = 8,
                                .K = 8,
                                .a = matrix(0),
                                .b = matrix(0),
                                .c = matrix(0),
                                .bias = matrix(bias),
                                .before_gelu = matrix(input)};
    kernels->Run(product);  // Measures.
    const int64_t before = emulated_cuda::NumProducts(cublaslt::kGeluAuxBias);
    kernels->Run(product);
    EXPECT_EQ(emulated_cuda::NumProducts(cublaslt::kGeluAuxBias) - before, input == 1 ? 0 : 1);
  }
}

// c (M, 8) = a (M, 16) b (16, 8) of ones, on new kernels, with GELU or added to c. Each M is a
// shape that has not been measured. Returns c's elements, which are equal.
class Multiplication {
 public:
  explicit Multiplication(int64_t M) : M_(M) {
    for (const int64_t n : {16 * M, int64_t{128}, 8 * M, 8 * M})
      buffers_.push_back(arena_.Allocate(DType::kF32, n, "a matrix"));
  }
  float Run(bool gelu, bool adds) {
    for (const Buffer& buffer : buffers_)
      kernels_->Run(op::Fill{buffer.AsTensor(DType::kF32), 1});
    const auto tensor = [&](size_t i) { return buffers_[i].AsTensor(DType::kF32); };
    op::Matmul product = {.M = M_, .N = 8, .K = 16, .a = tensor(0), .b = tensor(1), .c = tensor(2)};
    if (gelu) product.before_gelu = tensor(3);
    if (adds) product.addend = product.c;
    kernels_->Run(product);
    std::vector<float> c(static_cast<size_t>(8 * M_));
    kernels_->stream().Download(c.data(), tensor(2).data, tensor(2).bytes());
    EXPECT_EQ(std::ranges::count(c, c[0]), std::ssize(c));
    return c[0];
  }

 private:
  const int64_t M_;
  const std::unique_ptr<Device> device_ = MakeTestDevice("emulated-cuda");
  const std::unique_ptr<Kernels> kernels_ = device_->MakeKernels();
  Arena arena_{"device memory", Arena::Kind::kReal, 0, &device_->memory()};
  std::vector<Buffer> buffers_;
};

class AlgorithmsTest : public testing::Test {
 protected:
  ~AlgorithmsTest() override { emulated_cuda::SetAlgorithms({{}}); }
};

TEST_F(AlgorithmsTest, TheFastestIsTakenAndKeptForAllKernelsOfTheProcess) {
  emulated_cuda::SetAlgorithms({{.work = 4}, {.work = 3}, {.work = 2, .fails = true}, {.work = 2}});
  EXPECT_EQ(Multiplication(24).Run(false, true), 17);  // Added to once, whatever was measured.
  EXPECT_EQ(emulated_cuda::LastAlgorithm(), 3);
  emulated_cuda::SetAlgorithms({{.work = 1}, {.work = 9}, {.work = 9}, {.work = 9}});
  EXPECT_EQ(Multiplication(24).Run(false, true), 17);
  EXPECT_EQ(emulated_cuda::LastAlgorithm(), 3);
}

TEST_F(AlgorithmsTest, TheRecommendedOneIsTakenUnlessAnotherIsClearlyFaster) {
  emulated_cuda::SetAlgorithms({{.work = 100}, {.work = 99}});
  Multiplication(40).Run(false, false);
  EXPECT_EQ(emulated_cuda::LastAlgorithm(), 0);
}

TEST_F(AlgorithmsTest, WhenOneFailsLaterTheNextIsTaken) {
  emulated_cuda::SetAlgorithms({{.work = 1}, {.work = 2}});
  Multiplication multiplication(56);
  EXPECT_EQ(multiplication.Run(false, false), 16);
  EXPECT_EQ(emulated_cuda::LastAlgorithm(), 0);
  emulated_cuda::SetAlgorithms({{.fails = true}, {.work = 2}});
  EXPECT_EQ(multiplication.Run(false, false), 16);
  EXPECT_EQ(emulated_cuda::LastAlgorithm(), 1);
}

TEST_F(AlgorithmsTest, AnEpilogueThatIsSlowerThanAKernelIsNotUsed) {
  for (const auto& [work, num_fused] : {std::pair(1, 1), std::pair(5, 0)}) {
    emulated_cuda::SetAlgorithms({{.work = 1, .epilogue_work = work}});
    Multiplication multiplication(72 + 16 * work);
    multiplication.Run(true, false);
    const int64_t before = emulated_cuda::NumProducts(cublaslt::kGeluAux);
    EXPECT_NEAR(multiplication.Run(true, false), 16, 1e-4);
    EXPECT_EQ(emulated_cuda::NumProducts(cublaslt::kGeluAux) - before, num_fused);
  }
}

TEST(EpilogueTest, ALibraryWithoutThemGivesTheSameGradients) {
  const Step with = StepOf(TinyGpt2(), DType::kF32);
  setenv("EMULATED_CUBLASLT_WITHOUT_EPILOGUES", "1", 1);
  const Step without = StepOf(TinyGpt2(), DType::kF32);
  unsetenv("EMULATED_CUBLASLT_WITHOUT_EPILOGUES");
  EXPECT_EQ(without.counts, (Counts{8, 0, 0, 0, 0}));
  EXPECT_NEAR(with.loss, without.loss, 1e-6);
  ASSERT_EQ(with.gradient.size(), without.gradient.size());
  for (size_t i = 0; i < with.gradient.size(); ++i)
    EXPECT_NEAR(with.gradient[i], without.gradient[i], 1e-6);
}

}  // namespace
}  // namespace dsat::engine
