// The plans that a ds_config asks for.
#pragma once

#include <cstdint>

#include "engine/config/ds_config.h"
#include "engine/model/layer.h"
#include "engine/plan/plan.h"

namespace dsat::engine {

// The plan of a training step on pipeline stage `stage`. Throws as Engine's constructor.
Plan PlanFor(const Model& model, const DsConfig& config, int world_size, int stage = 0);
// The same without the reduction of gradients: the steps of 1-bit Adam after freeze_step.
Plan UnreducedPlanFor(const Model& model, const DsConfig& config, int world_size);
// The plan of an evaluation between steps of `training`, PlanFor's on the same stage, whose buckets
// it uses: forward passes alone, over `num_micro_batches`.
Plan EvaluationPlanFor(const Model& model, const DsConfig& config, const Plan& training, int stage,
                       int64_t num_micro_batches);

}  // namespace dsat::engine
