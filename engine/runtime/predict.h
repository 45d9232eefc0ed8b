// Predicts what a configuration needs and sends: executes its plan with the same executor and
// layers as training, but on the counting backend and the counting process group.
#pragma once

#include <cstdint>

#include "engine/backend/kernels.h"
#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/core/device_kind.h"
#include "engine/io/async_file.h"
#include "engine/model/layer.h"
#include "engine/runtime/timeline.h"

namespace dsat::engine {

// The prediction for one rank. Traffic, FLOPs and time are those of one optimizer step.
struct Prediction {
  int64_t peak_bytes = 0;                   // Device memory, highest point of a steady step.
  int64_t state_bytes = 0;                  // Device memory between steps.
  int64_t activation_bytes_per_sample = 0;  // The most at a time, at micro-batch size 1.
  int64_t step_flops = 0;                   // Forward and backward.
  int64_t forward_flops = 0;                // Forward passes only.
  Traffic step_traffic;                     // Sent by this rank.
  int64_t host_peak_bytes = 0;              // Host memory, as peak_bytes.
  int64_t host_state_bytes = 0;             // Host memory between steps.
  TierTraffic tier_traffic;                 // Between device and host memory.
  AioTraffic disk_traffic;                  // With the disk.
  int64_t disk_bytes = 0;                   // Size of the swap files.
  int64_t computed_flops = 0;  // step_flops, and what activation checkpointing computes again.
  // Highest points of a whole run: making the engine and the first step may take more.
  int64_t run_peak_bytes = 0;
  int64_t run_host_peak_bytes = 0;
  StepTime step_time;  // At the given speeds.
};

// Runs two steps on the counting backend, without limit. `seq_len` is T. Takes milliseconds. Throws
// what Engine's constructor throws of settings that this model or number of ranks does not allow,
// and what MakeCountingKernels says of `kind`.
Prediction Predict(const Model& model, const DsConfig& config, int64_t seq_len, int rank, int size,
                   int num_threads, const Speeds& speeds = {}, DeviceKind kind = DeviceKind::kCpu);

}  // namespace dsat::engine
