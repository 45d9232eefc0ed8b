// Changes the arguments and the config of the user's own DeepSpeed command.
#include "searcher/command/deepspeed_command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/regex.h"
#include "engine/config/keys.h"
#include "engine/config/settings.h"
#include "proto/launch_settings.h"
#include "searcher/command/rank_launcher.h"

namespace dsat {
namespace {

using Argv = std::vector<std::string>;

constexpr char kTotal[] = "train_batch_size";
constexpr char kAccumulation[] = "gradient_accumulation_steps";

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

// A use of the variable DSAT_DS_CONFIG.
const RE2& ConfigVariable() {
  static const RE2 kVariable(fmt::format(R"(\$(?:{0}\b|\{{{0}\}}))", kConfigVariable),
                             RegexOptions());
  return kVariable;
}

bool UsesVariable(const std::string& word) {
  return RE2::PartialMatch(word, ConfigVariable());
}

// True if the import hook of a Python that the command starts may run.
bool RunsPython(const CommandWords& command, const ExperimentSpec& spec) {
  const auto names_python = [](const CommandWord& word) {
    return IsPython(word.text) || word.text.ends_with(".py") || word.text.ends_with(".sh");
  };
  return command.in_shell() || FindRankLauncher(command) ||
         std::ranges::any_of(command.words(), names_python) ||
         (!command.words().empty() && FirstLineOf(command.words()[0].text, spec).starts_with("#!"));
}

// Keys that are newer than the script's DeepSpeed get the names that it knows them by.
void RenameForRelease(const ExperimentSpec& spec, Json& ds_config) {
  const Json* release = FindAtPointer(spec.machine, "/packages/deepspeed");
  if (release == nullptr || !release->is_string()) return;
  for (const engine::Key& key : engine::Keys()) {
    const bool is_given = FindAtPointer(ds_config, key.pointer) != nullptr;
    if (!is_given || key.type == engine::KeyType::kAlias) continue;
    const std::string name = engine::NameIn(release->get<std::string>(), key);
    if (name.empty() || name == key.pointer) continue;
    SetAtPointer(ds_config, name, engine::Take(ds_config, key.pointer));
  }
}

}  // namespace

std::vector<ArgumentPart> FindConfigArguments(const CommandWords& command,
                                              const ExperimentSpec& spec) {
  std::vector<ArgumentPart> found;
  for (size_t i = 0; i < command.words().size(); ++i) {
    if (const auto part = ConfigIn(command, i, spec)) found.push_back(*part);
  }
  return found;
}

bool NamesConfig(const ExperimentSpec& spec) {
  return std::ranges::any_of(spec.entrypoint, UsesVariable) ||
         !FindConfigArguments(CommandWords(spec.entrypoint), spec).empty();
}

bool OthersMayReadConfig(const ExperimentSpec& spec) {
  const CommandWords command(spec.entrypoint);
  bool by_python = false;
  for (size_t i = 0; i < command.words().size(); ++i) {
    const CommandWord& word = command.words()[i];
    if (word.first) by_python = RankProgramAt(command, i).has_value();
    const bool substitutes =
        word.text.find("$(") != word.text.npos || word.text.find('`') != word.text.npos;
    const bool names_it = UsesVariable(word.text) || ConfigIn(command, i, spec);
    if (names_it && (substitutes || !by_python)) return true;
  }
  return false;
}

void CheckDeepSpeedCommand(const ExperimentSpec& spec, bool has_hook) {
  const std::string builtin = "builtin";
  if (spec.entrypoint.size() == 1 && NearestWord(spec.entrypoint[0], {&builtin, 1}) == builtin) {
    Throw(ErrorCode::kInvalidArgument, "entrypoint: \"{}\" is no command; did you mean \"{}\"?",
          spec.entrypoint[0], builtin);
  }
  const CommandWords command(spec.entrypoint);
  if (!NamesConfig(spec) && !(has_hook && RunsPython(command, spec))) {
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: \"{}\" does not say where it takes the path of its DeepSpeed config{}; put "
          "{} there, as in --deepspeed_config {}, so that each trial can be given its own",
          fmt::join(spec.entrypoint, " "),
          has_hook ? " and starts no Python, whose calls of DeepSpeed dsat could change" : "",
          kConfigPlaceholder, kConfigPlaceholder);
  }
  CheckRankLauncher(spec);
}

void SetArgument(CommandWords& command, const std::string& flag, const Json& value) {
  const std::string name = WithUnderscores(flag);
  const std::vector<CommandWord>& words = command.words();
  if (!value.is_boolean()) {
    if (const auto part = FindFlag(command, name)) return command.Replace(*part, WordOf(value));
    return command.InsertBehind(words.size() - 1, {flag, WordOf(value)});
  }
  const auto found = std::ranges::find_if(
      words, [&](const CommandWord& word) { return WithUnderscores(word.text) == name; });
  const auto index = static_cast<size_t>(found - words.begin());
  if (found == words.end() && value) command.InsertBehind(words.size() - 1, {flag});
  if (found != words.end() && !value) command.Remove(index, index + 1);
}

std::optional<Json> ArgumentOf(const CommandWords& command, const std::string& flag,
                               bool is_switch) {
  const std::string name = WithUnderscores(flag);
  if (is_switch) {
    return std::ranges::any_of(command.words(), [&](const CommandWord& word) {
      return WithUnderscores(word.text) == name;
    });
  }
  const auto part = FindFlag(command, name);
  if (!part || command.words()[part->index].expands) return std::nullopt;
  return TextOf(command, *part);
}

Argv ArgvForTrial(const ExperimentSpec& spec, const Json& ds_config, const std::string& config_path,
                  std::optional<int> port, const std::string& python_path) {
  CommandWords command(spec.entrypoint);
  for (const ArgumentPart& part : FindConfigArguments(command, spec))
    command.Replace(part, config_path);
  for (const auto& [flag, key] : kBatchArguments) {
    const bool has_number = ds_config.contains(key) && ds_config[key].is_number();
    for (size_t i = 0; i < command.words().size() && has_number; ++i) {
      if (const auto value = ValueOfFlag(command, i, flag))
        command.Replace(*value, ds_config[key].dump());
    }
  }
  for (const auto& [flag, value] : ArgumentsOf(ds_config))
    SetArgument(command, flag, value);
  for (size_t i = 0; i < command.words().size() && !python_path.empty(); ++i)
    command.InsertIntoList(i, "PYTHONPATH=", python_path);
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (launcher && launcher->needs_port && port)
    command.InsertBehind(launcher->args_begin - 1, {launcher->port_flag, std::to_string(*port)});
  Argv argv = command.Changed();
  if (command.in_shell()) return argv;  // A shell replaces the variable itself.
  std::string literally = config_path;
  RE2::GlobalReplace(&literally, R"(\\)", R"(\\\\)");
  for (std::string& word : argv)
    RE2::GlobalReplace(&word, ConfigVariable(), literally);
  return argv;
}

Json ConfigForScript(const ExperimentSpec& spec, Json ds_config, bool has_hook) {
  RenameForRelease(spec, ds_config);
  const auto is_number = [&](const char* key) {
    return spec.ds_config.contains(key) && spec.ds_config[key].is_number_integer();
  };
  const Json* tensors = FindAtPointer(ds_config, "/tensor_parallel/autotp_size");
  const bool shares_tensors = tensors != nullptr && *tensors > 1;
  if (!is_number(kTotal) || shares_tensors) ds_config.erase(kTotal);
  if (!has_hook && !is_number(kAccumulation) && ds_config.value(kAccumulation, Json()) == 1)
    ds_config.erase(kAccumulation);
  return ds_config;
}

std::map<std::string, std::string> FileForRanks(const ExperimentSpec& spec, const Json& config) {
  Json file = spec.file;
  Json hparams = file.value("hyperparameters", Json::object());
  file.erase("hyperparameters");
  const auto given = hparams.find("deepspeed_config");
  if (given == hparams.end()) {
    for (const auto& [key, value] : spec.ds_config.items())
      hparams.erase(key);
    hparams.update(config);
  } else {
    if (given->is_object()) *given = config;
    hparams["overwrite_deepspeed_args"] = config;
  }
  return {{"DSAT_HPARAMS", hparams.dump()}, {"DSAT_EXPERIMENT", file.dump()}};
}

Json ConfigForTrial(Json ds_config) {
  ds_config.erase("autotuning");
  for (const char* key : kOffInTrials) {
    const auto found = ds_config.find(key);
    if (found == ds_config.end()) continue;
    (found->is_object() ? (*found)["enabled"] : *found) = false;
  }
  return ds_config;
}

}  // namespace dsat
