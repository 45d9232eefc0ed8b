// One file of whole parameters from a checkpoint of any number of ranks, as DeepSpeed's
// zero_to_fp32.py makes it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace dsat::engine {

struct CollateOptions {
  std::string dir = {};        // The folder of the checkpoints.
  std::string tag = {};        // Empty: the newest.
  std::string out = {};        // The file to write; its name ends in .safetensors.
  std::string dtype = "fp32";  // The type of the numbers written: fp32, bf16, fp16.
  bool force = false;          // Replace `out` if it exists.
};

struct CollateResult {
  std::string tag = {};
  int64_t num_tensors = 0;
  int64_t num_elems = 0;
  int64_t file_bytes = 0;
};

// Parameters have the names and shapes of published files (published.h): those of Hugging Face's
// files of GPT-2 and Llama. Their values are the f32 master copies where these exist. A tied
// parameter occurs once. The memory in use depends on the largest parameter, not on the model.
// `out` appears complete or not at all. `progress` is called with the bytes done and the bytes of
// all; an exception that it throws ends the work. Throws kInvalidArgument naming the option,
// kAlreadyExists naming `out`, and as LoadCheckpoint for files that are missing or damaged.
CollateResult Collate(const CollateOptions& options,
                      const std::function<void(int64_t done_bytes, int64_t all_bytes)>& progress);

}  // namespace dsat::engine
