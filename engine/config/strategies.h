// Whole ds_configs by name: "stage_2_offload" where a file would be named.
//
// Names and bucket sizes are PyTorch Lightning's (its DeepSpeedStrategy), with or without its
// prefix: "deepspeed_stage_2_offload" is the same.
#ifndef DSAT_ENGINE_CONFIG_STRATEGIES_H_
#define DSAT_ENGINE_CONFIG_STRATEGIES_H_

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

std::span<const Strategy> Strategies();

// nullptr if there is none of this name.
const Strategy* FindStrategy(std::string_view name);

// `ds_config`, in one name for every key, at the strategy's stage with the strategy's offload; all
// else stays, the settings of an offload block too. Where nothing says otherwise, files are in
// /local_nvme, which is refused where it does not exist when a run starts.
Json WithStrategy(const Json& ds_config, const Strategy& strategy);

// What the strategy alone says: bf16, AdamW, a micro-batch size of "auto", buckets of 2e8 elements,
// overlap_comm.
Json StrategyConfig(const Strategy& strategy);

// The strategy of this name, else the file. Throws kNotFound naming the file and all strategies, or
// what ReadJsonFile throws.
Json ReadDsConfig(const std::string& name_or_path);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CONFIG_STRATEGIES_H_
