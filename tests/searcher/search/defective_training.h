// Short real trainings of the built-in engine, some with a defect that a broken communication
// library or a wrong setting could have. The defects are in a process group around the real one.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/half.h"
#include "engine/data/dataset.h"
#include "engine/runtime/engine.h"
#include "tests/engine/backend/test_device.h"
#include "tests/engine/runtime/run_ranks.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {

enum class Defect {
  kNone,
  kDroppedGradients,    // Rank 1 contributes zeros.
  kSkippedReduction,    // Every third reduction does not happen: each rank keeps its own gradients.
  kAccumulationOffBy1,  // A step ends one micro-batch early.
  kStaleShard,          // The others never get a newer version of the last rank's parameters.
  kZeroGradients,
};

inline constexpr Defect kDefects[] = {Defect::kDroppedGradients, Defect::kSkippedReduction,
                                      Defect::kAccumulationOffBy1, Defect::kStaleShard,
                                      Defect::kZeroGradients};

// Forwards to `inner`, which outlives it, with a defect.
class DefectiveGroup : public ProcessGroup {
 public:
  DefectiveGroup(ProcessGroup& inner, Defect defect, DType param_dtype)
      : ProcessGroup(inner.rank(), inner.size()),
        inner_(&inner),
        defect_(defect),
        param_dtype_(param_dtype) {}
  DefectiveGroup(std::unique_ptr<ProcessGroup> inner, Defect defect, DType param_dtype)
      : DefectiveGroup(*inner, defect, param_dtype) {
    owned_ = std::move(inner);
  }

  CommBuffer Allocate(int64_t bytes) override { return inner_->Allocate(bytes); }
  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
    auto part = inner_->Split(color_of_rank);
    if (!part) return nullptr;
    return std::make_unique<DefectiveGroup>(std::move(part), defect_, param_dtype_);
  }
  std::vector<double> GatherNumbers(Call::Kind kind, double number) override {
    return inner_->GatherNumbers(kind, number);
  }
  void CheckPeers(const std::string& call, int peer, Clock::time_point since) override {
    inner_->CheckPeers(call, peer, since);
  }

 private:
  void RunCollective(const Call& call, const CommBuffer& buffer) override {
    const bool reduces =
        call.kind == Call::Kind::kReduceScatter || call.kind == Call::Kind::kAllReduce;
    if (reduces && !Reduces(buffer, call.dtype, call.count)) return;
    const bool gathers_params =
        call.kind == Call::Kind::kAllGather && call.RowBytes() > kMaxNormBytes;
    if (defect_ != Defect::kStaleShard || rank() != size() - 1 || !gathers_params)
      return inner_->Collect(call, buffer);
    char* const mine = buffer.Row(rank(), call.RowBytes());
    const std::vector<char> now(mine, mine + call.RowBytes());
    const std::vector<char> sent = FirstLike(now);
    std::memcpy(mine, sent.data(), sent.size());
    inner_->Collect(call, buffer);
    std::memcpy(mine, now.data(), now.size());
  }
  void RunMessage(const Call& call, const void* sent, void* received) override {
    inner_->Pass(call, sent, received);
  }

  // Rows of at most this size are the numbers of a gradient norm, not parameters.
  static constexpr int64_t kMaxNormBytes = 1000;

  template <typename T>
  static T ReadAt(const std::vector<char>& row, size_t i) {
    T value;
    std::memcpy(&value, row.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  float ValueAt(const std::vector<char>& row, size_t i) const {
    if (param_dtype_ == DType::kF32) return ReadAt<float>(row, i);
    if (param_dtype_ == DType::kF16) return ToFloat(ReadAt<F16>(row, i));
    return std::bit_cast<float>(uint32_t{ReadAt<uint16_t>(row, i)} << 16);  // kBF16.
  }

  // The first row that was sent of this part of the parameters, which changes little in a step.
  const std::vector<char>& FirstLike(const std::vector<char>& row) {
    const size_t num = row.size() / static_cast<size_t>(BytesPerElem(param_dtype_));
    for (const std::vector<char>& first : first_rows_) {
      double distance = 0, norm = 0;
      for (size_t i = 0; i < num && first.size() == row.size(); ++i) {
        const double a = ValueAt(row, i), b = ValueAt(first, i);
        distance += (a - b) * (a - b);
        norm += a * a;
      }
      if (first.size() == row.size() && distance <= 0.3 * norm) return first;
    }
    return first_rows_.emplace_back(row);
  }

  // Whether the reduction happens.
  bool Reduces(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
    const bool zero =
        defect_ == Defect::kZeroGradients || (defect_ == Defect::kDroppedGradients && rank() == 1);
    if (zero) {
      const auto bytes = static_cast<size_t>(row_elems * size() * BytesPerElem(dtype));
      std::memset(buffer.data, 0, bytes);
    }
    return defect_ != Defect::kSkippedReduction || ++num_reductions_ % 3 != 0;
  }

  ProcessGroup* inner_;
  std::unique_ptr<ProcessGroup> owned_;
  Defect defect_;
  DType param_dtype_;
  int64_t num_reductions_ = 0;
  std::deque<std::vector<char>> first_rows_;
};

struct LossRun {
  DsConfig config;
  int world_size = 2;
  int num_steps = 8;
  uint64_t seed = 1;  // The seed of parameters and data.
  Defect defect = Defect::kNone;
};

// The losses of a training.
inline std::vector<double> LossesOf(const Model& model, const LossRun& run) {
  const auto data = OpenDataset({{"type", "synthetic"}, {"seq_len", kSeqLen}, {"vocab_size", 61}},
                                "", static_cast<int64_t>(run.seed), "/data");
  DsConfig config = run.config;
  if (run.defect == Defect::kAccumulationOffBy1) {
    --config.batch.accumulation_steps;
    config.batch.train_batch_size =
        config.batch.micro_batch_size * config.batch.accumulation_steps * run.world_size;
  }
  std::vector<double> losses;
  RunRanks(run.world_size, [&](ProcessGroup& host) {
    TestDevice device(host);
    DefectiveGroup group(device.group(), run.defect, config.dtype());
    const Resources resources{model, group, device.memory().view(), data.get(), kSeqLen};
    Engine engine(resources, config, run.seed);
    for (int step = 0; step < run.num_steps; ++step) {
      const double loss = engine.TrainBatch().loss;
      if (host.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

}  // namespace dsat::engine
