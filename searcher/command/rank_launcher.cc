// Finds the launcher that starts the ranks of the user's own command.
#include "searcher/command/rank_launcher.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"

namespace dsat {
namespace {

using Argv = std::vector<std::string>;

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
    KnownLauncher{"torchrun", "torch.distributed.launch", "--master_port", "--nproc_per_node",
                  "--nproc_per_node", "--nnodes"},
    KnownLauncher{"accelerate", "accelerate.commands.launch", "--main_process_port",
                  "--num_processes", "--num_processes", ""},
};
// Arguments that determine the address of the ranks' rendezvous.
constexpr std::array<std::string_view, 4> kMasterFlags = {"--master_port", "--main_process_port",
                                                          "--standalone", "--rdzv"};
// Words that may stand before a program and run it; with them their options, and the duration that
// `timeout` has. Options before a program that have a value stand between spaces.
constexpr std::array<std::string_view, 10> kWrappers = {
    "env", "exec", "nohup", "time", "setsid", "uv", "poetry", "conda", "timeout", "nice"};
constexpr std::string_view kOptionsWithValue =
    // uv
    " --with -w --with-editable --with-requirements --python -p --python-platform --project"
    " --directory --extra --no-extra --group --no-group --only-group --env-file --package"
    " --index --default-index --index-url -i --extra-index-url --find-links -f"
    " --upgrade-package -P --refresh-package --reinstall-package --no-binary-package"
    " --no-build-package --config-setting -C --index-strategy --keyring-provider"
    " --resolution --prerelease --exclude-newer --link-mode --cache-dir --config-file --color"
    // conda, timeout and nice
    " --name -n --prefix --cwd --kill-after -k --signal -s --adjustment ";
// Options of launchers without a value, behind which a module or a program may follow.
constexpr std::array<std::string_view, 30> kSwitches = {
    "-m", "--module", "--no_python",
    // torchrun
    "--standalone", "--run_path", "--use_env",
    // deepspeed
    "--no_local_rank", "--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid",
    "--bind_cores_to_rank", "--elastic_training",
    // accelerate
    "-q", "--quiet", "--debug", "--cpu", "--multi_gpu", "--tpu", "--tpu_cluster", "--ipex",
    "--use_xpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm", "--use_parallelism_config",
    "--same_network", "--enable_cpu_affinity", "--dynamo_use_dynamic", "--downcast_bf16"};

bool IsIn(std::span<const std::string_view> list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

bool IsPython(const CommandWord& word) {
  return BaseName(word.text).starts_with("python");
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
  const auto count = [&](std::string_view flag) -> std::optional<int64_t> {
    const auto value = LauncherValue(command, *launcher, flag);
    return value ? ParseNumber<int64_t>(TextOf(command, *value)) : std::nullopt;
  };
  launcher->num_ranks = count(known.ranks_flag);
  if (!launcher->num_ranks) launcher->num_ranks = count(known.other_ranks_flag);
  if (launcher->num_ranks) {
    int64_t& ranks = *launcher->num_ranks;
    if (__builtin_mul_overflow(ranks, count(known.nodes_flag).value_or(1), &ranks))
      ranks = std::numeric_limits<int64_t>::max();
  }
  for (const std::string_view flag : {"--include", "-i"}) {
    const auto filter = LauncherValue(command, *launcher, flag);
    if (filter && known.name == "deepspeed")
      launcher->num_ranks = CountIncluded(TextOf(command, *filter));
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

// The index behind the last word of the command that begins at words()[first].
size_t EndOfCommand(const CommandWords& command, size_t first) {
  const std::vector<CommandWord>& words = command.words();
  size_t end = first + 1;
  while (end < words.size() && !words[end].first)
    ++end;
  return end;
}

// The program of the command that begins at words()[i], behind variables and wrappers; the last of
// these if it has none.
size_t ProgramAt(const CommandWords& command, size_t i) {
  const size_t end = EndOfCommand(command, i);
  bool awaits_duration = false;
  for (; i + 1 < end; ++i) {
    const std::string& text = command.words()[i].text;
    const bool is_wrapper = IsIn(kWrappers, BaseName(text)) || text == "run";
    if (text.starts_with('-')) {
      if (kOptionsWithValue.find(" " + text + " ") != kOptionsWithValue.npos) ++i;
    } else if (is_wrapper || text.find('=') != text.npos) {
      awaits_duration = awaits_duration || BaseName(text) == "timeout";
    } else if (!std::exchange(awaits_duration, false)) {
      return i;
    }
  }
  return std::min(i, end - 1);
}

// True if words()[i] is the script, the module or the program that a launcher's ranks run, and not
// one of its arguments from `args_begin` on: no option of a launcher has more than one value.
bool IsProgramOfLauncher(const CommandWords& command, size_t args_begin, size_t i) {
  const CommandWord& word = command.words()[i];
  if (word.text.ends_with(".py")) return true;
  if (word.expands || word.text.starts_with('-')) return false;
  const std::string before = i == args_begin ? "" : WithUnderscores(command.words()[i - 1].text);
  const bool may_be_value = before.starts_with('-') && before.find('=') == before.npos;
  return !may_be_value || IsIn(kSwitches, before);
}

// The index of the script or, behind -m, of the module that the Python words()[i] runs; the number
// of words if there is none.
size_t ScriptOfPython(const CommandWords& command, size_t i) {
  const std::vector<CommandWord>& words = command.words();
  for (++i; i < words.size() && words[i].text.starts_with('-') && words[i].text != "-m"; ++i) {
    if (words[i].text == "-W" || words[i].text == "-X") ++i;  // These have values.
  }
  if (i < words.size() && words[i].text == "-m") ++i;
  return std::min(i, words.size());
}

// The launcher that the program words()[i] is.
std::optional<RankLauncher> LauncherAt(const CommandWords& command, size_t i) {
  const std::vector<CommandWord>& words = command.words();
  const size_t script = IsPython(words[i]) ? ScriptOfPython(command, i) : words.size();
  const size_t module = script < words.size() && words[script - 1].text == "-m" ? script : 0;
  for (const KnownLauncher& known : kLaunchers) {
    if (module > 0 ? words[module].text != known.module : BaseName(words[i].text) != known.name)
      continue;
    RankLauncher launcher;
    launcher.name = known.name;
    launcher.port_flag = known.port_flag;
    launcher.ranks_flag = known.ranks_flag;
    launcher.args_begin = std::max(i, module) + 1;
    if (module == 0 && known.name == "accelerate") ++launcher.args_begin;  // accelerate launch ...
    launcher.args_begin = std::min(launcher.args_begin, words.size());
    launcher.args_end = launcher.args_begin;
    while (launcher.args_end < words.size() && !words[launcher.args_end].first &&
           !IsProgramOfLauncher(command, launcher.args_begin, launcher.args_end)) {
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
// Values are known as far as the command, the experiment and our environment show them.
void CheckVariables(const CommandWords& command, const ExperimentSpec& spec) {
  const std::vector<CommandWord>& words = command.words();
  std::map<std::string, std::string> values = spec.environment;
  const auto value_at = [&](size_t index) -> std::optional<std::string> {
    const std::string name = VariableIn(words[index].text);
    if (name.empty()) return std::nullopt;
    if (const auto found = values.find(name); found != values.end()) return found->second;
    const char* const ours = std::getenv(name.c_str());
    return ours == nullptr ? std::nullopt : std::optional<std::string>(ours);
  };
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  size_t options_end = launcher ? launcher->args_end : 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& text = words[i].text;
    const size_t program = words[i].first ? ProgramAt(command, i) : i;
    if (words[i].first && words[program].expands) {
      const std::string value = value_at(program).value_or("");
      const auto hidden = FindRankLauncher(CommandWords({"sh", "-c", value}));
      if (hidden) RefuseVariable(command, program, program, value, hidden->name);
    }
    const bool is_option = launcher && i >= launcher->args_begin && i < options_end;
    if (is_option && words[i].expands && (text[0] == '$' || text[0] == '`')) {
      const auto value = value_at(i);
      const bool behind_flag = words[i - 1].text.starts_with('-');
      const bool is_script = value && !value->empty() && !value->starts_with('-') && !behind_flag;
      if (is_script) {
        options_end = i;
      } else if (value ? value->starts_with('-') : !behind_flag) {
        RefuseVariable(command, launcher->args_begin - 1, i, value.value_or("..."), launcher->name);
      }
    }
    if (const size_t equals = text.find('='); equals != text.npos)
      values[text.substr(0, equals)] = text.substr(equals + 1);
  }
}

// Refuses devices with names, which DeepSpeed's launcher does not read.
void CheckIncluded(const CommandWords& command, const RankLauncher& launcher) {
  for (const std::string_view flag : {"--include", "-i", "--exclude", "-e"}) {
    const auto value = LauncherValue(command, launcher, flag);
    const std::string text = value ? TextOf(command, *value) : "";
    if (text.find("GPU-") == text.npos && text.find("MIG-") == text.npos) continue;
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: {} {}: the launcher `deepspeed` reads numbers of devices only; remove it, "
          "set CUDA_VISIBLE_DEVICES to the names for dsat, and use torchrun, or `python` without "
          "a launcher",
          flag, text);
  }
}

}  // namespace

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

std::optional<ArgumentPart> LauncherValue(const CommandWords& command, const RankLauncher& launcher,
                                          std::string_view flag) {
  for (size_t i = launcher.args_begin; i < launcher.args_end; ++i) {
    if (const auto value = ValueOfFlag(command, i, flag)) return value;
  }
  return std::nullopt;
}

std::optional<RankProgram> RankProgramAt(const CommandWords& command, size_t first) {
  const std::vector<CommandWord>& words = command.words();
  RankProgram found{.starter = ProgramAt(command, first)};
  if (const auto launcher = LauncherAt(command, found.starter)) {
    found.begin = launcher->args_end;
  } else if (IsPython(words[found.starter])) {
    found.begin = ScriptOfPython(command, found.starter);
  } else if (words[found.starter].text.ends_with(".py")) {
    found.begin = found.starter;
  } else {
    return std::nullopt;
  }
  const std::string before = found.begin == 0 ? "" : words[found.begin - 1].text;
  found.is_module = before == "-m" || before == "--module";
  return found;
}

void CheckRankLauncher(const ExperimentSpec& spec) {
  const CommandWords command(spec.entrypoint);
  CheckVariables(command, spec);
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (launcher && launcher->name == "deepspeed") CheckIncluded(command, *launcher);
  if (launcher && launcher->num_ranks && *launcher->num_ranks != spec.slots_per_trial) {
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: {} would start {} ranks, expected {} as in resources.slots_per_trial",
          launcher->name, *launcher->num_ranks, spec.slots_per_trial);
  }
}

}  // namespace dsat
