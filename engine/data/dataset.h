// Training data as an endless, deterministic sequence of token samples.
#ifndef DSAT_ENGINE_DATA_DATASET_H_
#define DSAT_ENGINE_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/json.h"

namespace dsat::engine {

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Writes sample `index` (>= 0): tokens (T) and the token after each, targets (T). The same index
  // gives the same sample, whatever the number of ranks. Thread-safe.
  virtual void Sample(int64_t index, int64_t T, int32_t* tokens, int32_t* targets) const = 0;
  virtual int64_t vocab_size() const = 0;
};

// {"type": "text", "path": "file, folder or glob, or a list of them", "seq_len": 128}: any text
// files read as bytes (vocabulary 256), samples drawn at pseudo-random offsets by (seed, index);
// {"type": "synthetic", "seq_len": 128, "vocab_size": 256}: tokens of a fixed random Markov chain,
// so that there is something to learn. Relative paths start at `base_dir`. `what` is the JSON
// pointer of the block for messages. Throws kNotFound naming the missing file, kInvalidArgument
// naming key and value (unknown type, files too short for seq_len, ...).
std::unique_ptr<Dataset> OpenDataset(const Json& data, const std::string& base_dir, int64_t seed,
                                     const std::string& what);

// The block's seq_len, or `model_max` if it has none. Throws kInvalidArgument if it is not in
// [1, model_max].
int64_t SeqLen(const Json& data, int64_t model_max, const std::string& what);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_DATA_DATASET_H_
