// Computes from the profile of a model what a ZeRO stage needs on one rank, and the largest
// micro-batch that fits.
//
// The sizes of model states are those of Rajbhandari et al., "ZeRO" (2020), section 5;
// docs/dev/methods.md has the formulas.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "engine/config/settings.h"
#include "engine/plan/placement.h"
#include "proto/trial.h"

namespace dsat {

// Bytes on one rank.
struct StageMemory {
  int64_t param_bytes = 0;
  int64_t grad_bytes = 0;
  int64_t optimizer_bytes = 0;  // Master weights included.
  int64_t buffer_bytes = 0;     // Communication buckets.
  int64_t gathered_bytes = 0;   // Stage 3: the parameters that are whole at one time, at least.
  int64_t activation_bytes_per_sample = 0;
  // Parameters and optimizer states in host memory; not in the numbers above.
  int64_t offloaded_bytes = 0;

  // Everything that does not grow with the micro-batch.
  int64_t fixed_bytes() const {
    return param_bytes + grad_bytes + optimizer_bytes + buffer_bytes + gathered_bytes;
  }
};

// The program whose memory the formulas predict.
enum class MemoryLaw {
  kBuiltin,    // The built-in engine's, roughly.
  kDeepSpeed,  // DeepSpeed's, with the copies and buffers that its optimizers allocate.
  // As Determined published: the dtype is fp16 or fp32, the optimizer is Adam, and there are no
  // buffers, no gathered parameters and no offload.
  kPublished,
};

class MemoryModel {
 public:
  // `ds_config` gives precision, optimizer, offload and buckets; its stage does not matter.
  // `world_size` is the number of ranks. REQUIRES: world_size >= 1.
  MemoryModel(const ModelProfile& profile, const Json& ds_config, int64_t world_size,
              MemoryLaw law);

  // REQUIRES: stage in [0, 3].
  StageMemory ForStage(int stage) const;

  // The largest micro-batch size predicted to fit; 0 if not even 1 fits. At most 1 if the profile
  // has no activation size or no device memory. With the published formula the result is at least
  // 1, and one sample is kept in reserve.
  int64_t ApproxMaxMicroBatch(int stage) const;

 private:
  // As the profile's trainer checkpoints activations, or if it is made to do otherwise.
  int64_t ActivationBytes() const;
  int64_t BufferElems(int stage) const;
  int64_t GatheredElems(const engine::StateHomes& homes) const;
  // Whether this switch of bf16 acts.
  bool IsBf16(const char* key) const;
  // Bytes of a parameter, of its master copy and of its gradient.
  int64_t ParamWidth() const;
  int64_t MasterWidth(int stage) const;
  int64_t GradWidth(int stage) const;
  // DeepSpeed's second partition of the parameters, within a group of ranks (ZeRO++'s hpZ).
  int64_t SecondaryBytes(int stage) const;
  // The parts of optimizer states and parameters that are not in device memory.
  double OffloadedOptimizer(int stage) const;
  bool OffloadsParams(int stage) const;

  ModelProfile profile_;
  engine::Settings settings_;
  int64_t world_size_;
  bool published_;
  bool deepspeed_;
};

}  // namespace dsat
