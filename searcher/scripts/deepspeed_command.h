// Changes the arguments and the config of the user's own DeepSpeed command.
#ifndef DSAT_SEARCHER_SCRIPTS_DEEPSPEED_COMMAND_H_
#define DSAT_SEARCHER_SCRIPTS_DEEPSPEED_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace dsat {

// argv[index] from byte `offset` on is the path of a DeepSpeed config file.
struct ConfigArgument {
  size_t index = 0;
  size_t offset = 0;
};

// The values of --deepspeed_config, --ds_config (also with a hyphen) and --deepspeed, as
// "--flag value" or "--flag=value". A --deepspeed that is not followed by a .json file is a switch.
std::vector<ConfigArgument> FindConfigArguments(const std::vector<std::string>& argv);

// A program that starts the ranks itself.
struct RankLauncher {
  std::string name;       // "deepspeed", "torchrun", "accelerate"
  size_t args_begin = 0;  // argv[args_begin, args_end) are the launcher's own arguments.
  size_t args_end = 0;
  std::string port_flag;
  std::optional<int64_t> num_ranks;  // If its arguments give it.
  bool needs_port = false;           // The arguments choose no port or rendezvous.
};
std::optional<RankLauncher> FindRankLauncher(const std::vector<std::string>& argv);

// Throws kInvalidArgument if the command names no config file, or if its launcher starts another
// number of ranks than `num_ranks`.
void CheckDeepSpeedCommand(const std::vector<std::string>& argv, int64_t num_ranks);

// The arguments of one trial: the config file is replaced by `config_path`; the batch size
// arguments of the Hugging Face trainer, where given, follow the config (the trainer refuses to
// differ); a launcher without a port gets `port`.
std::vector<std::string> ArgvForTrial(const std::vector<std::string>& argv, const Json& ds_config,
                                      const std::string& config_path, int port);

// The settings of DeepSpeed's hooks.
struct HookSettings {
  bool profile = false;  // Count parameters and activations in one forward pass; measure no time.
  int64_t start_profile_step = 3;
  int64_t end_profile_step = 5;
  std::string metrics_path;     // Absolute.
  std::string model_info_path;  // Absolute.
};

// `ds_config` with DeepSpeed's autotuning hooks turned on, and without settings that write
// elsewhere or slow down the steps: monitors, breakdowns, the user's own FLOPS profiling.
Json ConfigWithHooks(Json ds_config, const HookSettings& settings);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_DEEPSPEED_COMMAND_H_
