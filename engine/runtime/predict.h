// Predict = execute: what a configuration will need and send, from the same plan, executor and
// layers as training, on the counting backend and the counting process group.
#ifndef DSAT_ENGINE_RUNTIME_PREDICT_H_
#define DSAT_ENGINE_RUNTIME_PREDICT_H_

#include <cstdint>

#include "engine/backend/kernels.h"
#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/io/async_file.h"
#include "engine/model/layer.h"
#include "engine/runtime/timeline.h"

namespace dsat::engine {

struct Prediction {
  int64_t peak_bytes = 0;   // device memory, highest point of a steady step
  int64_t state_bytes = 0;  // device memory between steps
  int64_t activation_bytes_per_sample =
      0;                        // the most that they take at a time, at micro-batch size 1
  int64_t step_flops = 0;       // forward and backward of one optimizer step, this rank
  int64_t forward_flops = 0;    // forward passes only
  Traffic step_traffic;         // sent by this rank in one optimizer step
  int64_t host_peak_bytes = 0;  // host memory, as peak_bytes
  int64_t host_state_bytes = 0;
  TierTraffic tier_traffic;    // between device and host memory in one optimizer step
  AioTraffic disk_traffic;     // with disk in one optimizer step
  int64_t disk_bytes = 0;      // size of the swap files
  int64_t computed_flops = 0;  // step_flops, and what activation checkpointing computes again
  StepTime step_time;          // at the given speeds
};

// Runs two steps on the counting backend, without limit. `seq_len` is T. Takes milliseconds. Throws
// what Engine's constructor throws of settings that this model or number of ranks does not allow,
// and what MakeCountingKernels says of `kind`.
Prediction Predict(const Model& model, const DsConfig& config, int64_t seq_len, int rank, int size,
                   int num_threads, const Speeds& speeds = {}, DeviceKind kind = DeviceKind::kCpu);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_PREDICT_H_
