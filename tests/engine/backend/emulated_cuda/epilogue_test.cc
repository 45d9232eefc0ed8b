// That training on a GPU takes the epilogues that cuBLASLt has, and does without them where it has
// none.
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
  std::vector<float> gradient;  // Of a bias in the middle.
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
  using Offsets = std::pair<int64_t, int64_t>;  // Of the bias and of GELU's input.
  for (const auto& [bias, input] : {Offsets{0, 0}, {0, 1}, {0, 8}, {1, 8}}) {
    const int64_t before = emulated_cuda::NumProducts(cublaslt::kGeluAuxBias);
    kernels->Run(op::Matmul{.M = 8,
                            .N = 8,
                            .K = 8,
                            .a = matrix(0),
                            .b = matrix(0),
                            .c = matrix(0),
                            .bias = matrix(bias),
                            .before_gelu = matrix(input)});
    EXPECT_EQ(emulated_cuda::NumProducts(cublaslt::kGeluAuxBias) - before, input == 1 ? 0 : 1);
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
