// Changes the arguments and the config of the user's own DeepSpeed command.
#include "searcher/scripts/deepspeed_command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace dsat {
namespace {

using Argv = std::vector<std::string>;

constexpr std::array<std::string_view, 5> kConfigFlags = {
    "--deepspeed_config", "--deepspeed-config", "--ds_config", "--ds-config", "--deepspeed"};

// Arguments of the Hugging Face trainer -> the key that they must agree with.
constexpr std::array<std::pair<std::string_view, const char*>, 2> kBatchFlags = {{
    {"--per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"--gradient_accumulation_steps", "gradient_accumulation_steps"},
}};

struct KnownLauncher {
  std::string_view name;
  std::string_view module;  // As in `python -m module`.
  std::string_view port_flag;
  std::string_view ranks_flag;  // Ranks per node; hyphens count as underscores.
  std::string_view other_ranks_flag;
  std::string_view nodes_flag;  // "" = ranks_flag counts all nodes.
};
constexpr std::array kLaunchers = {
    KnownLauncher{"deepspeed", "deepspeed.launcher.runner", "--master_port", "--num_gpus",
                  "--num_accelerators", "--num_nodes"},
    KnownLauncher{"torchrun", "torch.distributed.run", "--master_port", "--nproc_per_node",
                  "--nproc_per_node", "--nnodes"},
    KnownLauncher{"accelerate", "accelerate.commands.launch", "--main_process_port",
                  "--num_processes", "--num_processes", ""},
};
// Arguments that determine the address of the ranks' rendezvous.
constexpr std::array<std::string_view, 4> kMasterFlags = {"--master_port", "--main_process_port",
                                                          "--standalone", "--rdzv"};

std::string_view BaseName(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

std::string WithUnderscores(std::string argument) {
  for (size_t i = 2; i < argument.size() && argument[i] != '='; ++i) {
    if (argument[i] == '-') argument[i] = '_';
  }
  return argument;
}

std::optional<int64_t> ParseCount(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// The place of the value of argv[i] if argv[i] is `flag`.
std::optional<ConfigArgument> ValueOf(const Argv& argv, size_t i, std::string_view flag) {
  if (argv[i].starts_with(std::string(flag) + "=")) return ConfigArgument{i, flag.size() + 1};
  if (argv[i] != flag || i + 1 == argv.size() || argv[i + 1].starts_with("-")) return std::nullopt;
  return ConfigArgument{i + 1, 0};
}

// The number that the launcher's own arguments give for `flag`.
std::optional<int64_t> LauncherCount(const Argv& own, std::string_view flag) {
  for (size_t i = 0; !flag.empty() && i < own.size(); ++i) {
    if (const auto value = ValueOf(own, i, flag)) {
      return ParseCount(std::string_view(own[value->index]).substr(value->offset));
    }
  }
  return std::nullopt;
}

void ReadLauncherArguments(const KnownLauncher& known, const Argv& argv, RankLauncher* launcher) {
  Argv own;
  for (size_t i = launcher->args_begin; i < launcher->args_end; ++i) {
    own.push_back(WithUnderscores(argv[i]));
  }
  launcher->num_ranks = LauncherCount(own, known.ranks_flag);
  if (!launcher->num_ranks) launcher->num_ranks = LauncherCount(own, known.other_ranks_flag);
  if (launcher->num_ranks) *launcher->num_ranks *= LauncherCount(own, known.nodes_flag).value_or(1);
  launcher->needs_port = std::none_of(own.begin(), own.end(), [](const std::string& argument) {
    return std::any_of(kMasterFlags.begin(), kMasterFlags.end(),
                       [&](std::string_view flag) { return argument.starts_with(flag); });
  });
}

void TurnOff(Json* config, const char* block) {
  if (config->contains(block) && (*config)[block].is_object()) (*config)[block]["enabled"] = false;
}

}  // namespace

std::vector<ConfigArgument> FindConfigArguments(const Argv& argv) {
  std::vector<ConfigArgument> found;
  for (size_t i = 0; i < argv.size(); ++i) {
    for (const std::string_view flag : kConfigFlags) {
      const std::optional<ConfigArgument> value = ValueOf(argv, i, flag);
      if (!value) continue;
      if (flag == "--deepspeed" && !argv[value->index].ends_with(".json")) continue;
      found.push_back(*value);
    }
  }
  return found;
}

std::optional<RankLauncher> FindRankLauncher(const Argv& argv) {
  if (argv.empty()) return std::nullopt;
  const bool module = argv.size() > 2 && BaseName(argv[0]).starts_with("python") && argv[1] == "-m";
  for (const KnownLauncher& known : kLaunchers) {
    if (module ? argv[2] != known.module : BaseName(argv[0]) != known.name) continue;
    RankLauncher launcher;
    launcher.name = known.name;
    launcher.port_flag = known.port_flag;
    launcher.args_begin = module ? 3 : 1;
    if (!module && known.name == "accelerate") ++launcher.args_begin;  // accelerate launch ...
    launcher.args_begin = std::min(launcher.args_begin, argv.size());
    launcher.args_end = launcher.args_begin;
    while (launcher.args_end < argv.size() && !argv[launcher.args_end].ends_with(".py")) {
      ++launcher.args_end;
    }
    ReadLauncherArguments(known, argv, &launcher);
    return launcher;
  }
  return std::nullopt;
}

void CheckDeepSpeedCommand(const Argv& argv, int64_t num_ranks) {
  if (FindConfigArguments(argv).empty()) {
    Throw(
        ErrorCode::kInvalidArgument,
        "entrypoint: \"{}\" names no DeepSpeed config file, expected one of {} with a .json file, "
        "so that each trial can be given its own",
        fmt::join(argv, " "), fmt::join(kConfigFlags, ", "));
  }
  const std::optional<RankLauncher> launcher = FindRankLauncher(argv);
  if (launcher && launcher->num_ranks && *launcher->num_ranks != num_ranks) {
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: {} would start {} ranks, expected {} as in resources.slots_per_trial",
          launcher->name, *launcher->num_ranks, num_ranks);
  }
}

Argv ArgvForTrial(const Argv& argv, const Json& ds_config, const std::string& config_path,
                  int port) {
  Argv result = argv;
  for (const ConfigArgument& argument : FindConfigArguments(argv)) {
    result[argument.index].replace(argument.offset, std::string::npos, config_path);
  }
  for (const auto& [flag, key] : kBatchFlags) {
    if (!ds_config.contains(key)) continue;
    for (size_t i = 0; i < argv.size(); ++i) {
      const std::optional<ConfigArgument> value = ValueOf(argv, i, flag);
      if (value)
        result[value->index].replace(value->offset, std::string::npos, ds_config[key].dump());
    }
  }
  const std::optional<RankLauncher> launcher = FindRankLauncher(argv);
  if (launcher && launcher->needs_port) {
    result.insert(result.begin() + static_cast<std::ptrdiff_t>(launcher->args_begin),
                  {launcher->port_flag, std::to_string(port)});
  }
  return result;
}

Json ConfigWithHooks(Json ds_config, const HookSettings& settings) {
  Json hooks = {{"enabled", true},
                {"start_profile_step", settings.start_profile_step},
                {"end_profile_step", settings.end_profile_step},
                {"metric_path", settings.metrics_path}};
  if (settings.profile) {
    hooks["model_info"] = {{"profile", true}};
    hooks["model_info_path"] = settings.model_info_path;
  }
  ds_config["autotuning"] = std::move(hooks);
  // Since version 0.19.3. Earlier versions show the peak memory of every step at the default level.
  ds_config["log_level"] = "info";
  ds_config["steps_per_print"] = 1;
  for (const char* block : {"tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler"}) {
    TurnOff(&ds_config, block);
  }
  for (const char* key : {"wall_clock_breakdown", "memory_breakdown"}) {
    if (ds_config.contains(key)) ds_config[key] = false;
  }
  return ds_config;
}

}  // namespace dsat
