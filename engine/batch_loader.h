// Which samples a rank trains on.
#ifndef DSAT_ENGINE_BATCH_LOADER_H_
#define DSAT_ENGINE_BATCH_LOADER_H_

#include <cstdint>

#include "engine/config/ds_config.h"
#include "engine/data/dataset.h"
#include "engine/memory/arena.h"
#include "engine/model/layer.h"

namespace dsat::engine {

class BatchLoader {
 public:
  // `dataset` may be nullptr with a counting arena, which has no memory to fill. Both must outlive
  // this. `image` is that of the model; if it is not all 0, batches are images and seq_len is 1.
  // Throws OutOfMemory.
  BatchLoader(const Dataset* dataset, Arena& arena, const BatchSizes& sizes, int64_t seq_len,
              int rank, int world_size, const ImageShape& image = {});

  // Reads sample `step * train_batch + (micro_batch * P + rank) * B + b` into row b: the samples of
  // a step are the same set however they are split into ranks and micro-batches.
  const Batch& Load(int64_t step, int64_t micro_batch);
  const Batch& batch() const { return batch_; }

 private:
  const Dataset* dataset_;
  BatchSizes sizes_;
  int rank_;
  int world_size_;
  int64_t image_elems_;
  Buffer inputs_;  // Tokens, or pixels.
  Buffer targets_;
  Batch batch_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BATCH_LOADER_H_
