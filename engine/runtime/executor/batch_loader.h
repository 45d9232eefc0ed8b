// Chooses the samples that a rank trains on and copies them to the device.
#pragma once

#include <cstdint>
#include <future>
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
  // `image` is the model's; if it is not all 0, batches are images and seq_len is 1. Throws
  // OutOfMemory.
  BatchLoader(const Dataset* dataset, Arena& arena, Kernels& kernels, const BatchSizes& sizes,
              int64_t seq_len, int rank, int world_size, const ImageShape& image = {});
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Reads sample `first_sample + (micro_batch * P + rank) * B + b` into row b: the samples of a
  // step, whose first one is `first_sample`, are the same set however they are split into ranks and
  // micro-batches. The batch is in host memory and valid until the next call. A thread reads the
  // batch after it meanwhile. Throws as the data set.
  const Batch& Load(int64_t first_sample, int64_t micro_batch);
  // The batch of the last Load; before it, the shape alone.
  const Batch& batch() const { return batch_; }
  // Load reads `last` in place of later samples, which do not exist. REQUIRES: no Load came before.
  void set_last_sample(int64_t last) { last_sample_ = last; }
  // Returns a copy in device memory, valid until the next call. A batch larger than the
  // constructor's allocates more memory. Throws OutOfMemory.
  const Batch& ToDevice(const Batch& batch);

 private:
  // The order of batches.
  struct Position {
    int64_t first_sample = 0;  // The first sample of the step.
    int64_t micro_batch = 0;
    bool operator==(const Position&) const = default;
  };
  struct HostBatch {
    std::vector<int32_t> tokens;
    std::vector<float> pixels;
    std::vector<int32_t> targets;
  };

  Position After(const Position& position) const;
  HostBatch Read(const Position& position) const;

  const Dataset* dataset_;
  Arena& arena_;
  Kernels& kernels_;
  BatchSizes sizes_;
  int rank_;
  int world_size_;
  int64_t image_elems_;
  int64_t last_sample_ = std::numeric_limits<int64_t>::max();
  HostBatch host_batch_;
  Batch batch_;
  Buffer device_inputs_;  // Tokens, or pixels.
  Buffer device_targets_;
  Batch device_batch_;
  Position next_;                 // The position of ahead_.
  std::future<HostBatch> ahead_;  // Last: its end waits for the thread, which uses the others.
};

}  // namespace dsat::engine
