// Changes the arguments and the config of the user's own DeepSpeed command.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "searcher/command/command_words.h"

namespace dsat {

// The environment variable with the path of a trial's ds_config.
inline constexpr char kConfigVariable[] = "DSAT_DS_CONFIG";

// An argument of the Hugging Face trainer, and the key that it must agree with.
struct BatchArgument {
  const char* flag;
  const char* key;
};
inline constexpr BatchArgument kBatchArguments[] = {
    {"--per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"--gradient_accumulation_steps", "gradient_accumulation_steps"}};

// Settings and sections that ConfigForTrial removes or turns off.
inline constexpr const char* kOffInTrials[] = {
    "autotuning",     "tensorboard",          "wandb",           "csv_monitor", "comet",
    "flops_profiler", "wall_clock_breakdown", "memory_breakdown"};

// Flags whose value is a DeepSpeed config. --deepspeed may also be a switch.
inline constexpr std::array<std::string_view, 4> kConfigFlags = {
    "--deepspeed_config", "--deepspeed_config_file", "--ds_config", "--deepspeed"};

// Where the command names its DeepSpeed config: {ds_config}, the values of these flags, of
// --deepspeed if it is a .json file, and every argument or value of a flag that is the path of the
// experiment's own ds_config.
std::vector<ArgumentPart> FindConfigArguments(const CommandWords& command,
                                              const ExperimentSpec& spec);

// True if the command names its config as above or by the variable DSAT_DS_CONFIG.
bool NamesConfig(const ExperimentSpec& spec);

// True if the command gives its config to another program than Python, such as "jq", so that no
// import hook sees who reads it.
bool OthersMayReadConfig(const ExperimentSpec& spec);

// Throws kInvalidArgument if the command names no config file and no Python runs in it that dsat's
// import hook could reach (never without a hook), and as CheckRankLauncher.
void CheckDeepSpeedCommand(const ExperimentSpec& spec, bool has_hook);

// Gives `flag` the value: in its place if the command has the flag, else at the end. true and false
// are a switch that is given or not.
void SetArgument(CommandWords& command, const std::string& flag, const Json& value);
// The value that SetArgument would replace: the text of the flag's value, or whether the switch is
// given; nullopt if there is none, or a shell's variable has it.
std::optional<Json> ArgumentOf(const CommandWords& command, const std::string& flag,
                               bool is_switch);

// The arguments of one trial: those that its config holds (proto/launch_settings.h) are set; the
// config file is replaced by `config_path`; the batch size arguments of the Hugging Face trainer,
// where given, follow the config (the trainer refuses to differ); a launcher without a port gets
// `port`, if there is one; a PYTHONPATH that the command sets begins with `python_path`.
std::vector<std::string> ArgvForTrial(const ExperimentSpec& spec, const Json& ds_config,
                                      const std::string& config_path, std::optional<int> port,
                                      const std::string& python_path = "");

// The config as a script gets it: with the names of keys that its DeepSpeed knows, if its release
// is known, and with no batch sizes except the micro-batch size and those that the submitted config
// gives. The accumulation count is left out only if it is 1 and dsat's import hook does not run,
// because Lightning refuses it in a file; train_batch_size also where ranks share tensors, because
// DeepSpeed counts each of them.
Json ConfigForScript(const ExperimentSpec& spec, Json ds_config, bool has_hook);

// The variables in which a rank gets the experiment file: DSAT_HPARAMS has the hyperparameters,
// with `config`, that of the script, where the file has its DeepSpeed config (in
// overwrite_deepspeed_args or, if it is no file of its own, in its place), and DSAT_EXPERIMENT has
// the rest.
std::map<std::string, std::string> FileForRanks(const ExperimentSpec& spec, const Json& config);

// `ds_config` without DeepSpeed's own tuner, and without settings that write elsewhere or slow down
// the steps: monitors, breakdowns, the user's own FLOPS profiling.
Json ConfigForTrial(Json ds_config);

}  // namespace dsat
