// Chooses the samples that a rank trains on and copies them to the device.
#ifndef DSAT_ENGINE_RUNTIME_EXECUTOR_BATCH_LOADER_H_
#define DSAT_ENGINE_RUNTIME_EXECUTOR_BATCH_LOADER_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "engine/backend/kernels.h"
#include "engine/config/ds_config.h"
#include "engine/core/arena.h"
#include "engine/data/dataset.h"
#include "engine/model/layer.h"

namespace dsat::engine {

class BatchLoader {
 public:
  // `dataset` may be nullptr if Load is not called, or with a counting arena, which has no memory
  // to fill. Allocates one batch in `arena`, the memory of `kernels`. All three must outlive this.
  // `image` is the model's; if it is not all 0, batches are images and seq_len is 1.
  // Throws OutOfMemory.
  BatchLoader(const Dataset* dataset, Arena& arena, Kernels& kernels, const BatchSizes& sizes,
              int64_t seq_len, int rank, int world_size, const ImageShape& image = {});

  // Reads sample `step * train_batch + (micro_batch * P + rank) * B + b` into row b: the samples of
  // a step are the same set however they are split into ranks and micro-batches. The batch is in
  // host memory and valid until the next call.
  const Batch& Load(int64_t step, int64_t micro_batch);
  // From now on Load reads `last` in place of later samples, which do not exist.
  void set_last_sample(int64_t last) { last_sample_ = last; }
  // Returns a copy in device memory, valid until the next call. A batch larger than the
  // constructor's allocates more memory. Throws OutOfMemory.
  const Batch& ToDevice(const Batch& batch);

 private:
  const Dataset* dataset_;
  Arena& arena_;
  Kernels& kernels_;
  BatchSizes sizes_;
  int rank_;
  int world_size_;
  int64_t image_elems_;
  int64_t last_sample_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> tokens_;
  std::vector<float> pixels_;
  std::vector<int32_t> targets_;
  Batch batch_;
  Buffer device_inputs_;  // Tokens, or pixels.
  Buffer device_targets_;
  Batch device_batch_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_EXECUTOR_BATCH_LOADER_H_
