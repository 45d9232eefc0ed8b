// Predict = execute: the engine itself, on resources that count.
#include "engine/predict.h"

#include "engine/engine.h"

namespace dsat::engine {
namespace {

// The engine on one rank with micro-batches of one sample: what one sample keeps alive.
int64_t ActivationBytesPerSample(const Model& model, DsConfig config, int64_t seq_len,
                                 int num_threads) {
  config.batch = {.train_batch_size = 1, .micro_batch_size = 1, .accumulation_steps = 1};
  const auto group = MakeCountingGroup(0, 1);
  const auto kernels = MakeCountingKernels(num_threads);
  Arena arena("device memory", Arena::Kind::kCounting, 0);
  Engine engine({model, *group, *kernels, arena, nullptr, seq_len}, config, 0);
  return engine.TrainStep().activation_bytes;
}

}  // namespace

Prediction Predict(const Model& model, const DsConfig& config, int64_t seq_len, int rank, int size,
                   int num_threads) {
  const auto group = MakeCountingGroup(rank, size);
  const auto kernels = MakeCountingKernels(num_threads);
  Arena arena("device memory", Arena::Kind::kCounting, 0);
  Engine engine({model, *group, *kernels, arena, nullptr, seq_len}, config, 0);
  engine.TrainStep();

  Prediction prediction;
  prediction.state_bytes = arena.live_bytes();
  const Traffic before = group->traffic();
  arena.ResetPeak();
  const StepResult step = engine.TrainStep();
  prediction.peak_bytes = arena.peak_bytes();
  prediction.step_flops = step.flops;
  prediction.forward_flops = step.forward_flops;
  prediction.step_traffic = {
      .num_collectives = group->traffic().num_collectives - before.num_collectives,
      .sent_bytes = group->traffic().sent_bytes - before.sent_bytes};
  prediction.activation_bytes_per_sample =
      ActivationBytesPerSample(model, config, seq_len, num_threads);
  return prediction;
}

}  // namespace dsat::engine
