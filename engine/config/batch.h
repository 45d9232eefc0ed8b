// The three batch sizes of a config, and the config of a trial.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/json.h"

namespace dsat::engine {

// The largest number of samples in a micro-batch: beyond what any model can use, so that sizes in
// bytes stay small.
inline constexpr int64_t kMostMicroBatch = 1'000'000;
// The largest number of micro-batches in a step: it bounds the number of instructions.
inline constexpr int64_t kMostAccumulation = 100'000;

// train_batch_size = micro_batch_size * accumulation_steps * data-parallel size.
struct BatchSizes {
  int64_t train_batch_size = 0;
  int64_t micro_batch_size = 0;
  int64_t accumulation_steps = 0;
  bool operator==(const BatchSizes&) const = default;
};

// The ranks that train on samples of their own: pipeline stages, tensor parallelism and sequence
// parallelism share samples, so that it is world / (stages * autotp_size * sequence_parallel_size).
// Throws kInvalidArgument if these do not divide the ranks, or if expert parallelism is on and its
// autoep_size does not divide the ranks of a pipeline stage and the experts of the model, where a
// profile has told them (/dsat/trainer/num_experts).
int64_t DataParallelSize(const Json& ds_config, const std::string& source, int64_t world_size);

// Infers the third size from the two that are given (DeepSpeed's _set_batch_related_parameters).
// "auto" counts as not given; with nothing given, a micro-batch size of "auto" is 1. Throws
// kInvalidArgument "<source>: ..." naming all three sizes and the data-parallel size if they
// contradict each other, are not positive, or too few are given.
BatchSizes ResolveBatchSizes(const Json& ds_config, const std::string& source, int64_t world_size);

// The config that runs when the keys of `assignment` (JSON pointer -> value) are set over `base`:
// batch sizes resolved and consistent, "auto" ones included, one name for every key, no nulls and
// no `autotuning` block. It is ready for the built-in engine and for DeepSpeed. Other "auto" values
// stay: Hugging Face's Trainer fills them in, and everything else reads them as the default. The
// accumulation count is the base config's unless the assignment sets it, and train_batch_size
// follows; an autoep_size above 1 enables expert parallelism. Throws as ResolveBatchSizes and
// CanonicalConfig.
Json ConfigForTrial(const Json& base, const std::map<std::string, Json>& assignment,
                    int64_t world_size);

}  // namespace dsat::engine
