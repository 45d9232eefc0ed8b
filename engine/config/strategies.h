// Whole ds_configs by name: "stage_2_offload" in place of a file name.
//
// Names and bucket sizes are those of PyTorch Lightning's DeepSpeedStrategy, with or without its
// prefix: "deepspeed_stage_2_offload" is the same. Lightning has neither "stage_0" nor
// "stage_3_offload_optimizer".
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"

namespace dsat::engine {

struct Strategy {
  const char* name;
  int stage;
  const char* optimizer_device;  // "none", "cpu" or "nvme"
  const char* param_device;
};

// From the least to the most that is moved out of device memory.
std::span<const Strategy> Strategies();

// The strategy of this name, or nullptr.
const Strategy* FindStrategy(std::string_view name);

// `ds_config` at the stage and with the offload of the strategy; everything else stays, also other
// settings of an offload block. Offloaded files go to /local_nvme unless the config names a folder;
// a run is refused before it starts if the folder does not exist. REQUIRES: `ds_config` has one
// name for every key (CanonicalConfig).
Json WithStrategy(const Json& ds_config, const Strategy& strategy);

// The config of the strategy of this name alone (bf16, AdamW, a micro-batch size of "auto", buckets
// of 2e8 elements, overlap_comm), else of the file, which is an object. Throws kNotFound naming the
// file and all strategies, kInvalidArgument, or what ReadJsonFile throws.
Json ReadDsConfig(const std::string& name_or_path);

}  // namespace dsat::engine
