// The CPU backend. Each family of kernels is in a file of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/cpu/scratch.h"
#include "engine/backend/kernels.h"
#include "engine/backend/optimizer_kernels.h"

namespace dsat::engine {

class MatmulRunner;  // matmul.h
class ConvRunner;    // convolution.cc
std::shared_ptr<ConvRunner> MakeConvRunner(int num_threads);

// The cosines and sines of the rotary position embedding, kept from call to call: every block of a
// model rotates by the same angles.
class RotaryTable {
 public:
  // Makes the rows of positions [0, T).
  void Prepare(std::span<const float> frequencies, int64_t T);
  // The cosines of position t, then its sines: one of each per frequency. REQUIRES: t < T.
  const float* Row(int64_t t) const {
    return values_.data() + t * 2 * static_cast<int64_t>(frequencies_.size());
  }

 private:
  std::vector<float> frequencies_;
  int64_t T_ = 0;
  std::vector<float> values_;
};

// Results do not depend on num_threads. Not thread-safe: one per rank.
class CpuKernels final : public AllKernels {
 public:
  explicit CpuKernels(int num_threads);

  // elementwise.cc
  void Run(const op::Fill& op) override;
  void Run(const op::Cast& op) override;
  void Run(const op::Accumulate& op) override;
  void Run(const op::Scale& op) override;
  void Run(const op::SumOfSquares& op) override;
  void Run(const op::Add& op) override;

  // activation.cc
  void Run(const op::GeluForward& op) override;
  void Run(const op::GeluBackward& op) override;
  void Run(const op::ReluForward& op) override;
  void Run(const op::ReluBackward& op) override;
  void Run(const op::SwigluForward& op) override;
  void Run(const op::SwigluBackward& op) override;

  // linear.cc
  void Run(const op::Matmul& args) override;

  // norm.cc
  void Run(const op::LayerNormForward& op) override;
  void Run(const op::LayerNormBackward& op) override;
  void Run(const op::RmsNormForward& op) override;
  void Run(const op::RmsNormBackward& op) override;

  // group_norm.cc
  void Run(const op::GroupNormForward& op) override;
  void Run(const op::GroupNormBackward& op) override;

  // rotary.cc
  void Run(const op::RotateInPlace& op) override;

  // convolution.cc
  void Run(const op::ConvForward& op) override;
  void Run(const op::ConvInputGrad& op) override;
  void Run(const op::ConvWeightGrad& op) override;

  // image.cc
  void Run(const op::MeanPoolForward& op) override;
  void Run(const op::MeanPoolBackward& op) override;

  // embedding.cc
  void Run(const op::EmbeddingForward& op) override;
  void Run(const op::EmbeddingBackward& op) override;
  void Run(const op::TokenWindows& op) override;

  // attention.cc
  int64_t AttentionScratchBytes(const AttentionShape& shape) const override;
  void Run(const op::AttentionForward& op) override;
  void Run(const op::AttentionBackward& op) override;

  // cross_entropy.cc
  void Run(const op::CrossEntropyInPlace& op) override;

  // optimizer.cc
  void Run(const op::FindStepScale& op) override;
  void Run(const op::AdamStep& args) override;
  void Run(const op::SgdStep& args) override;
  void Run(const op::AdagradStep& args) override;
  void Run(const op::LionStep& args) override;
  void Run(const op::LambMoments& args) override;
  void Run(const op::LambApply& args) override;

  // one_bit.cc
  void Run(const op::MomentumStep& args) override;
  void Run(const op::FrozenAdamStep& args) override;
  void Run(const op::CompressSigns& op) override;
  void Run(const op::DecompressSigns& op) override;

 private:
  int num_threads_;
  std::shared_ptr<MatmulRunner> matmul_;
  std::shared_ptr<ConvRunner> conv_;
  RotaryTable rotary_table_;
  Scratch scratch_;  // Partial sums and row indices of one kernel call.
};

}  // namespace dsat::engine
