// The memory, kernels, process group and data that an engine uses.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/comm/counting_group.h"
#include "engine/core/device_kind.h"
#include "engine/data/dataset.h"
#include "engine/model/layer.h"
#include "engine/runtime/state/tier_memory.h"

namespace dsat::engine {

// All of it must outlive the engine.
struct Resources {
  const Model& model;
  ProcessGroup& group;  // All ranks, those of other pipeline stages included.
  Memory memory;
  const Dataset* dataset = nullptr;  // nullptr with a counting arena, or if batches are given.
  int64_t seq_len = 0;
};

// Everything an engine runs on, counting.
struct CountingResources {
  CountingResources(int rank, int size, int num_threads, DeviceKind kind)
      : group(rank, size), kernels(MakeCountingKernels(num_threads, kind)) {}
  Resources For(const Model& model, int64_t seq_len) {
    return {model, group, {device, host, *kernels, *kernels}, nullptr, seq_len};
  }

  CountingGroup group;
  std::unique_ptr<Kernels> kernels;
  Arena device{"device memory", Arena::Kind::kCounting, 0};
  Arena host{"host memory", Arena::Kind::kCounting, 0};
  const Buffer workspace = device.Charge(kernels->WorkspaceBytes(), "the kernels' workspace");
};

}  // namespace dsat::engine
