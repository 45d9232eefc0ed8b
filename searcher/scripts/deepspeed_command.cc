// Changes the arguments and the config of the user's own DeepSpeed command.
#include "searcher/scripts/deepspeed_command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/config/releases.h"
#include "proto/launch_settings.h"

namespace dsat {
namespace {

using Argv = std::vector<std::string>;

constexpr char kTotal[] = "train_batch_size";
constexpr char kMicroBatch[] = "train_micro_batch_size_per_gpu";
constexpr char kAccumulation[] = "gradient_accumulation_steps";

// Flags whose value is a DeepSpeed config. --deepspeed may also be a switch.
constexpr std::array<std::string_view, 4> kConfigFlags = {
    "--deepspeed_config", "--deepspeed_config_file", "--ds_config", "--deepspeed"};

// Arguments of the Hugging Face trainer -> the key that they must agree with.
constexpr std::array<std::pair<std::string_view, const char*>, 2> kBatchFlags = {{
    {"--per_device_train_batch_size", kMicroBatch},
    {"--gradient_accumulation_steps", kAccumulation},
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
// Words that may stand before a program and run it.
constexpr std::array<std::string_view, 5> kPrefixes = {"env", "exec", "nohup", "time", "setsid"};

std::optional<int64_t> ParseCount(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// The number that the launcher's own arguments give for `flag`.
std::optional<int64_t> LauncherCount(const CommandWords& command, const RankLauncher& launcher,
                                     std::string_view flag) {
  for (size_t i = launcher.args_begin; !flag.empty() && i < launcher.args_end; ++i) {
    if (const auto value = ValueOfFlag(command, i, flag))
      return ParseCount(TextOf(command, *value));
  }
  return std::nullopt;
}

// The devices in "worker-0:0,1@worker-1:2"; nullopt if a host has no list of them.
std::optional<int64_t> CountIncluded(const std::string& filter) {
  int64_t count = 0;
  std::istringstream hosts(filter);
  for (std::string host; std::getline(hosts, host, '@');) {
    if (host.find(':') == host.npos) return std::nullopt;
    count += 1 + std::ranges::count(host, ',');
  }
  return count;
}

void ReadLauncherArguments(const KnownLauncher& known, const CommandWords& command,
                           RankLauncher* launcher) {
  const auto count = [&](std::string_view flag) { return LauncherCount(command, *launcher, flag); };
  launcher->num_ranks = count(known.ranks_flag);
  if (!launcher->num_ranks) launcher->num_ranks = count(known.other_ranks_flag);
  if (launcher->num_ranks) {
    int64_t& ranks = *launcher->num_ranks;
    if (__builtin_mul_overflow(ranks, count(known.nodes_flag).value_or(1), &ranks))
      ranks = std::numeric_limits<int64_t>::max();
  }
  for (size_t i = launcher->args_begin; i < launcher->args_end; ++i) {
    for (const std::string_view flag : {"--include", "-i"}) {
      const auto filter = ValueOfFlag(command, i, flag);
      if (filter && known.name == "deepspeed")
        launcher->num_ranks = CountIncluded(TextOf(command, *filter));
    }
  }
  launcher->port = count(known.port_flag);
  launcher->needs_port = true;
  for (size_t i = launcher->args_begin; i < launcher->args_end; ++i) {
    const std::string argument = WithUnderscores(command.words()[i].text);
    launcher->needs_port &=
        std::none_of(kMasterFlags.begin(), kMasterFlags.end(),
                     [&](std::string_view flag) { return argument.starts_with(flag); });
  }
}

// The program of the command that begins at words()[i], behind variables and prefixes; the last of
// these if it has none.
size_t ProgramAt(const CommandWords& command, size_t i) {
  const std::vector<CommandWord>& words = command.words();
  const auto is_prefix = [](const std::string& word) {
    return word.find('=') != std::string::npos ||
           std::ranges::find(kPrefixes, BaseName(word)) != kPrefixes.end();
  };
  while (i + 1 < words.size() && !words[i + 1].first && is_prefix(words[i].text))
    ++i;
  return i;
}

// The launcher that the program words()[i] is.
std::optional<RankLauncher> LauncherAt(const CommandWords& command, size_t i) {
  const std::vector<CommandWord>& words = command.words();
  const bool module = i + 2 < words.size() && BaseName(words[i].text).starts_with("python") &&
                      words[i + 1].text == "-m";
  for (const KnownLauncher& known : kLaunchers) {
    if (module ? words[i + 2].text != known.module : BaseName(words[i].text) != known.name)
      continue;
    RankLauncher launcher;
    launcher.name = known.name;
    launcher.port_flag = known.port_flag;
    launcher.args_begin = i + (module ? 3 : 1);
    if (!module && known.name == "accelerate") ++launcher.args_begin;  // accelerate launch ...
    launcher.args_begin = std::min(launcher.args_begin, words.size());
    launcher.args_end = launcher.args_begin;
    while (launcher.args_end < words.size() && !words[launcher.args_end].first &&
           !words[launcher.args_end].text.ends_with(".py")) {
      ++launcher.args_end;
    }
    ReadLauncherArguments(known, command, &launcher);
    return launcher;
  }
  return std::nullopt;
}

// "OPTS" of "$OPTS", "${OPTS}" or "$OPTS/x"; "" if there is another expansion, as in "$(nproc)".
std::string VariableIn(std::string_view word) {
  if (!word.starts_with('$')) return "";
  word.remove_prefix(word.starts_with("${") ? 2 : 1);
  return std::string(LeadingVariableName(word));
}

// The values that words "$NAME" have, as far as the script, the experiment and our environment show
// them.
class Variables {
 public:
  Variables(const CommandWords& command, const ExperimentSpec& spec)
      : command_(command), spec_(spec) {
    for (size_t i = 0; i < command.words().size(); ++i) {
      const std::string& text = command.words()[i].text;
      const size_t equals = text.find('=');
      if (equals != text.npos) assigned_[text.substr(0, equals)].push_back(i);
    }
  }

  std::optional<std::string> ValueAt(size_t index) const {
    const std::string name = VariableIn(command_.words()[index].text);
    if (name.empty()) return std::nullopt;
    if (const auto found = assigned_.find(name); found != assigned_.end()) {
      const auto after = std::ranges::lower_bound(found->second, index);
      if (after != found->second.begin())
        return command_.words()[*std::prev(after)].text.substr(name.size() + 1);
    }
    if (const auto found = spec_.environment.find(name); found != spec_.environment.end())
      return found->second;
    const char* const ours = std::getenv(name.c_str());
    return ours == nullptr ? std::nullopt : std::optional<std::string>(ours);
  }

 private:
  const CommandWords& command_;
  const ExperimentSpec& spec_;
  std::map<std::string, std::vector<size_t>> assigned_;  // The words "NAME=VALUE", in their order.
};

[[noreturn]] void RefuseVariable(const CommandWords& command, size_t begin, size_t index,
                                 const std::string& value, const std::string& launcher) {
  Argv line;
  for (size_t i = begin; i < command.words().size() && (i == begin || !command.words()[i].first);
       ++i)
    line.push_back(i == index ? value : command.words()[i].text);
  Throw(ErrorCode::kInvalidArgument,
        "entrypoint: dsat does not see what {} holds for `{}`: options there would take precedence "
        "over the ranks, the port and the hosts of a trial; write it out: {}",
        command.words()[index].text, launcher, fmt::join(line, " "));
}

// Refuses a launcher, or options of one, in a variable of the shell. A variable behind a flag is
// its value, unless it is known to hold options, and another value without a hyphen is the script.
void CheckVariables(const CommandWords& command, const ExperimentSpec& spec) {
  const std::vector<CommandWord>& words = command.words();
  const Variables variables(command, spec);
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].first) continue;
    const size_t program = ProgramAt(command, i);
    if (!words[program].expands) continue;
    const std::string value = variables.ValueAt(program).value_or("");
    const auto hidden = FindRankLauncher(CommandWords({"sh", "-c", value}));
    if (hidden) RefuseVariable(command, program, program, value, hidden->name);
  }
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (!launcher) return;
  for (size_t i = launcher->args_begin; i < launcher->args_end; ++i) {
    if (!words[i].expands || (words[i].text[0] != '$' && words[i].text[0] != '`')) continue;
    const auto value = variables.ValueAt(i);
    const bool behind_flag = words[i - 1].text.starts_with('-');
    const bool is_script = value && !value->empty() && !value->starts_with('-') && !behind_flag;
    if (is_script) return;
    if (value ? value->starts_with('-') : !behind_flag)
      RefuseVariable(command, launcher->args_begin - 1, i, value.value_or("..."), launcher->name);
  }
}

// Refuses devices with names, which DeepSpeed's launcher does not read.
void CheckIncluded(const CommandWords& command, const RankLauncher& launcher) {
  for (size_t i = launcher.args_begin; i < launcher.args_end; ++i) {
    for (const std::string_view flag : {"--include", "-i", "--exclude", "-e"}) {
      const auto value = ValueOfFlag(command, i, flag);
      const std::string text = value ? TextOf(command, *value) : "";
      if (text.find("GPU-") == text.npos && text.find("MIG-") == text.npos) continue;
      Throw(ErrorCode::kInvalidArgument,
            "entrypoint: {} {}: the launcher `deepspeed` reads numbers of devices only; remove it, "
            "set CUDA_VISIBLE_DEVICES to the names for dsat, and use torchrun, or `python` without "
            "a launcher",
            flag, text);
    }
  }
}

// True if `text` is the path of the experiment's own ds_config.
bool IsOwnConfig(const std::string& text, const ExperimentSpec& spec) {
  if (text.empty() || spec.ds_config_path.empty()) return false;
  const std::filesystem::path path = std::filesystem::path(spec.model_dir) / text;
  return path.lexically_normal() == std::filesystem::path(spec.ds_config_path).lexically_normal();
}

// The part of word `i` that names the config, if any.
std::optional<ArgumentPart> ConfigIn(const CommandWords& command, size_t i,
                                     const ExperimentSpec& spec) {
  const CommandWord& word = command.words()[i];
  const size_t placeholder = word.text.find(kConfigPlaceholder);
  if (placeholder != std::string::npos)
    return ArgumentPart{i, placeholder, sizeof(kConfigPlaceholder) - 1};
  const size_t equals = word.text.starts_with('-') ? word.text.find('=') : std::string::npos;
  const size_t offset = equals == std::string::npos ? 0 : equals + 1;
  if (!word.expands && IsOwnConfig(word.text.substr(offset), spec)) return ArgumentPart{i, offset};
  for (const std::string_view flag : kConfigFlags) {
    const std::optional<ArgumentPart> value = ValueOfFlag(command, i, flag);
    if (!value) continue;
    const std::string text = TextOf(command, *value);
    if (flag == "--deepspeed" && !text.ends_with(".json")) continue;
    const bool found_there = value->index != i && ConfigIn(command, value->index, spec);
    if (!found_there) return value;
  }
  return std::nullopt;
}

bool UsesVariable(const Argv& argv) {
  return std::ranges::any_of(argv, [](const std::string& word) {
    return word.find(std::string("$") + kConfigVariable) != std::string::npos ||
           word.find(std::string("${") + kConfigVariable) != std::string::npos;
  });
}

// True if the program is a script with "#!", as those that pip installs.
bool IsScript(const std::string& program, const ExperimentSpec& spec) {
  std::vector<std::filesystem::path> folders = {spec.model_dir};
  const char* const path = std::getenv("PATH");
  std::istringstream parts(path == nullptr || program.find('/') != program.npos ? "" : path);
  for (std::string part; std::getline(parts, part, ':');)
    folders.emplace_back(part);
  return std::ranges::any_of(folders, [&](const std::filesystem::path& folder) {
    char begin[2] = {};
    std::ifstream(folder / program).read(begin, 2);
    return begin[0] == '#' && begin[1] == '!';
  });
}

// True if the import hook of a Python that the command starts may run.
bool RunsPython(const CommandWords& command, const ExperimentSpec& spec) {
  const auto names_python = [](const CommandWord& word) {
    return BaseName(word.text).starts_with("python") || word.text.ends_with(".py") ||
           word.text.ends_with(".sh");
  };
  return command.in_shell() || FindRankLauncher(command) ||
         std::ranges::any_of(command.words(), names_python) ||
         (!command.words().empty() && IsScript(command.words()[0].text, spec));
}

void TurnOff(Json* config, const char* block) {
  if (config->contains(block) && (*config)[block].is_object()) (*config)[block]["enabled"] = false;
}

// Keys that are newer than the script's DeepSpeed get the names that it knows them by.
void RenameForRelease(const ExperimentSpec& spec, Json& ds_config) {
  const Json* release = FindAtPointer(spec.machine, "/packages/deepspeed");
  if (release == nullptr || !release->is_string()) return;
  for (const engine::Key& key : engine::Keys()) {
    const Json* found = FindAtPointer(ds_config, key.pointer);
    if (found == nullptr || key.type == engine::KeyType::kAlias) continue;
    const std::string name = engine::NameIn(release->get<std::string>(), key);
    if (name.empty() || name == key.pointer) continue;
    const Json value = *found;
    const Json::json_pointer pointer(key.pointer);
    ds_config[pointer.parent_pointer()].erase(pointer.back());
    SetAtPointer(ds_config, name, value);
  }
}

}  // namespace

std::string WithUnderscores(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  for (size_t i = 2; i < argument.size() && argument[i] != '='; ++i) {
    if (argument[i] == '-') argument[i] = '_';
  }
  return argument;
}

std::optional<ArgumentPart> ValueOfFlag(const CommandWords& command, size_t index,
                                        std::string_view flag) {
  const std::vector<CommandWord>& words = command.words();
  const std::string argument = WithUnderscores(words[index].text);
  if (argument.starts_with(std::string(flag) + "=")) return ArgumentPart{index, flag.size() + 1};
  if (argument != flag || index + 1 == words.size() || words[index + 1].first ||
      words[index + 1].text.starts_with("-"))
    return std::nullopt;
  return ArgumentPart{index + 1, 0};
}

std::optional<ArgumentPart> FindFlag(const CommandWords& command, std::string_view flag) {
  for (size_t i = 0; i < command.words().size(); ++i) {
    if (const auto value = ValueOfFlag(command, i, flag)) return value;
  }
  return std::nullopt;
}

std::string TextOf(const CommandWords& command, const ArgumentPart& part) {
  return command.words()[part.index].text.substr(part.offset, part.length);
}

std::vector<ArgumentPart> FindConfigArguments(const CommandWords& command,
                                              const ExperimentSpec& spec) {
  std::vector<ArgumentPart> found;
  for (size_t i = 0; i < command.words().size(); ++i) {
    if (const auto part = ConfigIn(command, i, spec)) found.push_back(*part);
  }
  return found;
}

bool IsConfigFlag(const std::string& flag) {
  return std::ranges::find(kConfigFlags, flag) != kConfigFlags.end();
}

bool NamesConfig(const ExperimentSpec& spec) {
  return UsesVariable(spec.entrypoint) ||
         !FindConfigArguments(CommandWords(spec.entrypoint), spec).empty();
}

std::optional<RankLauncher> FindRankLauncher(const CommandWords& command) {
  const std::vector<CommandWord>& words = command.words();
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].first) continue;
    if (auto launcher = LauncherAt(command, ProgramAt(command, i))) return launcher;
  }
  return std::nullopt;
}

std::optional<RankLauncher> FindRankLauncher(const Argv& argv) {
  return FindRankLauncher(CommandWords(argv));
}

void CheckDeepSpeedCommand(const ExperimentSpec& spec, bool has_hook) {
  const CommandWords command(spec.entrypoint);
  if (!NamesConfig(spec) && !(has_hook && RunsPython(command, spec))) {
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: \"{}\" does not say where it takes the path of its DeepSpeed config{}; put "
          "{} there, as in --deepspeed_config {}, so that each trial can be given its own",
          fmt::join(spec.entrypoint, " "),
          has_hook ? " and starts no Python, whose calls of DeepSpeed dsat could change" : "",
          kConfigPlaceholder, kConfigPlaceholder);
  }
  CheckVariables(command, spec);
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (launcher && launcher->name == "deepspeed") CheckIncluded(command, *launcher);
  if (launcher && launcher->num_ranks && *launcher->num_ranks != spec.slots_per_trial) {
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: {} would start {} ranks, expected {} as in resources.slots_per_trial",
          launcher->name, *launcher->num_ranks, spec.slots_per_trial);
  }
}

void SetArgument(CommandWords& command, const std::string& flag, const Json& value) {
  const std::string name = WithUnderscores(flag);
  const std::vector<CommandWord>& words = command.words();
  if (!value.is_boolean()) {
    if (const auto part = FindFlag(command, name)) {
      std::string word = words[part->index].text;
      return command.Replace(part->index, word.replace(part->offset, part->length, WordOf(value)));
    }
    return command.InsertBehind(words.size() - 1, {flag, WordOf(value)});
  }
  const auto found = std::ranges::find_if(
      words, [&](const CommandWord& word) { return WithUnderscores(word.text) == name; });
  const auto index = static_cast<size_t>(found - words.begin());
  if (found == words.end() && value) command.InsertBehind(words.size() - 1, {flag});
  if (found != words.end() && !value) command.Remove(index, index + 1);
}

Argv ArgvForTrial(const ExperimentSpec& spec, const Json& ds_config, const std::string& config_path,
                  std::optional<int> port) {
  CommandWords command(spec.entrypoint);
  const auto replace = [&](const ArgumentPart& part, const std::string& text) {
    std::string word = command.words()[part.index].text;
    command.Replace(part.index, word.replace(part.offset, part.length, text));
  };
  for (const ArgumentPart& part : FindConfigArguments(command, spec))
    replace(part, config_path);
  for (const auto& [flag, key] : kBatchFlags) {
    const bool has_number = ds_config.contains(key) && ds_config[key].is_number();
    for (size_t i = 0; i < command.words().size() && has_number; ++i) {
      if (const auto value = ValueOfFlag(command, i, flag)) replace(*value, ds_config[key].dump());
    }
  }
  for (const auto& [flag, value] : ArgumentsOf(ds_config))
    SetArgument(command, flag, value);
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (launcher && launcher->needs_port && port)
    command.InsertBehind(launcher->args_begin - 1, {launcher->port_flag, std::to_string(*port)});
  Argv argv = command.Changed();
  // A shell replaces the variable itself.
  for (std::string& word : argv) {
    if (!command.in_shell() && (word == std::string("$") + kConfigVariable)) word = config_path;
  }
  return argv;
}

Json ConfigForScript(const ExperimentSpec& spec, Json ds_config, bool has_hook,
                     int64_t data_parallel_size) {
  RenameForRelease(spec, ds_config);
  const auto is_number = [](const Json& config, const char* key) {
    return config.contains(key) && config[key].is_number_integer();
  };
  const auto number = [&](const char* key) {
    return is_number(ds_config, key) ? ds_config[key].get<int64_t>() : 1;
  };
  const int64_t accumulation = number(kAccumulation);
  if (!is_number(spec.ds_config, kTotal)) {
    ds_config.erase(kTotal);
  } else if (data_parallel_size > 0) {
    ds_config[kTotal] = number(kMicroBatch) * accumulation * data_parallel_size;
  }
  if (!has_hook && !is_number(spec.ds_config, kAccumulation) && accumulation == 1)
    ds_config.erase(kAccumulation);
  return ds_config;
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
