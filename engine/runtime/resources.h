// The memory, kernels, process group and data that an engine uses.
#pragma once

#include <cstdint>

#include "engine/comm/process_group.h"
#include "engine/data/dataset.h"
#include "engine/model/layer.h"
#include "engine/runtime/state/tier_memory.h"

namespace dsat::engine {

struct BufferPlan;  // engine/core/buffer_plan.h
struct DsConfig;    // engine/config/ds_config.h

// All of it must outlive the engine.
struct Resources {
  const Model& model;
  ProcessGroup& group;  // All ranks, those of other pipeline stages included.
  Memory memory;
  const Dataset* dataset = nullptr;  // nullptr with a counting arena, or if batches are given.
  int64_t seq_len = 0;
  // BufferPlanOf (engine/runtime/predict.h), which predicts where the buffers of a run on a GPU
  // lie. REQUIRES: it is given if memory.device.WantsPlan().
  BufferPlan (*plan_buffers)(const Resources&, const DsConfig&) = nullptr;
};

}  // namespace dsat::engine
