// Predict = execute: the engine itself, on resources that count.
#include "engine/runtime/predict.h"

#include <algorithm>

#include "engine/backend/cost.h"
#include "engine/core/buffer_plan.h"
#include "engine/runtime/engine_internals.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {
namespace {

// The engine on one rank with micro-batches of one sample: what one sample keeps alive.
int64_t ActivationBytesPerSample(const Model& model, DsConfig config, int64_t seq_len,
                                 int num_threads, DeviceKind kind) {
  config.batch = {.train_batch_size = 1, .micro_batch_size = 1, .accumulation_steps = 1};
  config.pipeline = {};
  config.zero.offload_param = {};  // Its buffers hold a part of a layer on each of several ranks.
  CountingResources resources(0, 1, num_threads, kind);
  Engine engine(resources.For(model, seq_len), config, 0);
  return engine.TrainBatch().activation_bytes;
}

}  // namespace

Prediction Predict(const Model& model, const DsConfig& config, int64_t seq_len, int rank, int size,
                   int num_threads, const Speeds& speeds, DeviceKind kind) {
  CountingResources resources(rank, size, num_threads, kind);
  Engine engine(resources.For(model, seq_len), config, 0);
  engine.TrainBatch();

  const EngineInternals internals(engine);
  const auto tier_traffic = [&] { return resources.kernels->stream().tier_traffic(); };
  Prediction prediction;
  prediction.state_bytes = resources.device.live_bytes();
  prediction.host_state_bytes = resources.host.live_bytes();
  const Traffic sent_before = engine.traffic();
  const TierTraffic tiers_before = tier_traffic();
  const AioTraffic disk_before = internals.states().disk_traffic();
  const int64_t first_peak = resources.device.peak_bytes();
  const int64_t first_host_peak = resources.host.peak_bytes();
  resources.device.ResetPeak();
  resources.host.ResetPeak();
  const int64_t flops_before = resources.kernels->flops();
  Timeline timeline(engine, *resources.kernels, config, speeds);
  internals.set_on_done([&](const Instruction& instruction) { timeline.Ran(instruction); });
  const StepResult step = engine.TrainBatch();
  prediction.step_time = timeline.time();
  prediction.computed_flops = resources.kernels->flops() - flops_before;
  prediction.disk_bytes = internals.states().disk_bytes();
  prediction.step_traffic = engine.traffic() - sent_before;
  prediction.tier_traffic = tier_traffic() - tiers_before;
  prediction.disk_traffic = internals.states().disk_traffic() - disk_before;
  prediction.peak_bytes = resources.device.peak_bytes();
  prediction.host_peak_bytes = resources.host.peak_bytes();
  if (kind == DeviceKind::kCuda) {
    // The charged bytes, and those that the driver gives a run whose buffers lie as planned.
    const int64_t num_granules =
        (resources.device.PlanRequests().total_bytes + kCudaGranuleBytes - 1) / kCudaGranuleBytes;
    prediction.peak_bytes = resources.device.charged_bytes() + num_granules * kCudaGranuleBytes;
  }
  prediction.run_peak_bytes = std::max(first_peak, prediction.peak_bytes);
  prediction.run_host_peak_bytes = std::max(first_host_peak, prediction.host_peak_bytes);
  prediction.step_flops = step.flops;
  prediction.forward_flops = step.forward_flops;
  prediction.activation_bytes_per_sample =
      ActivationBytesPerSample(model, config, seq_len, num_threads, kind);
  return prediction;
}

}  // namespace dsat::engine
