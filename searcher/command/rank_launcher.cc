// Finds the launcher that starts the ranks of the user's own command.
#include "searcher/command/rank_launcher.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/parse_number.h"
#include "base/regex.h"

namespace dsat {

namespace fs = std::filesystem;

namespace {

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
constexpr std::array<std::string_view, 13> kWrappers = {
    "env",   "exec",    "nohup", "time", "setsid", "uv", "poetry",
    "conda", "timeout", "nice",  "then", "else",   "do"};
// A file that a shell runs may run others. More of them, and more words of one, are not read.
constexpr size_t kMostLines = 16, kMostWords = 2000;
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
  const size_t script = IsPython(words[i].text) ? ScriptOfPython(command, i) : words.size();
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

// Whether pip has installed the program: it is a script of Python in PATH, or beside a Python.
bool IsInstalledPython(const std::string& program, const ExperimentSpec& spec) {
  const std::string line = FirstLineOf(program, spec);
  if (!line.starts_with("#!") || line.find("python") == line.npos || program.ends_with(".py"))
    return false;
  const fs::path path = fs::path(spec.model_dir) / program;
  std::error_code error;
  return program.find('/') == program.npos || fs::exists(path.parent_path() / "python3", error);
}

// A command line, and where the entrypoint has it: "" for itself.
struct CommandLineOf {
  std::string place;
  CommandWords command;
};

// The file of a shell that the program words()[i] runs, as the command names it; "" if it is none.
std::string ShellFileAt(const CommandWords& command, size_t i, const ExperimentSpec& spec) {
  static const RE2 kShell(R"(#!\s*\S*/(env\s+)?[a-z]*sh(\s|$))", RegexOptions());
  const std::vector<CommandWord>& words = command.words();
  if (!IsShell(words[i].text))
    return RE2::PartialMatch(FirstLineOf(words[i].text, spec), kShell) ? words[i].text : "";
  const size_t end = EndOfCommand(command, i);
  std::error_code error;
  while (++i < end) {
    if (fs::is_regular_file(fs::path(spec.model_dir) / words[i].text, error)) return words[i].text;
  }
  return "";
}

// The entrypoint, and what it runs by files of a shell and by a variable in place of a program, as
// far as these can be read.
std::vector<CommandLineOf> CommandLinesOf(const ExperimentSpec& spec) {
  std::vector<CommandLineOf> lines = {{"", CommandWords(spec.entrypoint)}};
  std::map<std::string, std::string> values = spec.environment;
  for (size_t at = 0; at < lines.size(); ++at) {
    const CommandWords command = lines[at].command;
    const size_t num_words = std::min(command.words().size(), kMostWords);
    for (size_t i = 0; i < num_words && lines.size() < kMostLines; ++i) {
      const std::string& text = command.words()[i].text;
      if (const size_t equals = text.find('='); equals != text.npos)
        values[text.substr(0, equals)] = text.substr(equals + 1);
      if (!command.words()[i].first) continue;
      const size_t program = ProgramAt(command, i);
      std::string place = command.words()[program].text, line;
      if (const std::string name = VariableIn(place); !name.empty()) {
        const char* const ours = std::getenv(name.c_str());
        line = values.contains(name) ? values[name] : ours == nullptr ? "" : ours;
      } else if (place = ShellFileAt(command, program, spec); !place.empty()) {
        line = ReadOrEmpty(fs::path(spec.model_dir) / place);
      }
      if (!line.empty()) lines.push_back({place, CommandWords({"sh", "-c", line})});
    }
  }
  return lines;
}

}  // namespace

std::string FirstLineOf(const std::string& program, const ExperimentSpec& spec) {
  const bool is_name = program.find('/') == program.npos;
  std::array<char, 256> begin{};
  std::ifstream file(is_name ? fs::path(FindProgram(program)) : fs::path(spec.model_dir) / program,
                     std::ios::binary);
  file.read(begin.data(), begin.size());
  const std::string_view read(begin.data(), static_cast<size_t>(file.gcount()));
  return std::string(read.substr(0, read.find('\n')));
}

bool StartsRanks(const ExperimentSpec& spec) {
  return std::ranges::any_of(CommandLinesOf(spec), [&](const CommandLineOf& line) {
    const std::vector<CommandWord>& words = line.command.words();
    bool found = FindRankLauncher(line.command).has_value();
    for (size_t i = 0; i < std::min(words.size(), kMostWords) && !found; ++i)
      found = words[i].first && IsInstalledPython(words[ProgramAt(line.command, i)].text, spec);
    return found;
  });
}

std::optional<RankLauncher> FindRankLauncher(const CommandWords& command) {
  const std::vector<CommandWord>& words = command.words();
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].first) continue;
    if (auto launcher = LauncherAt(command, ProgramAt(command, i))) return launcher;
  }
  return std::nullopt;
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
  } else if (IsPython(words[found.starter].text)) {
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

std::string HiddenDeepSpeed(const ExperimentSpec& spec) {
  for (const CommandLineOf& line : CommandLinesOf(spec)) {
    const std::optional<RankLauncher> launcher = FindRankLauncher(line.command);
    if (launcher && launcher->name == "deepspeed" && !line.place.empty()) return line.place;
  }
  return "";
}

void CheckRankLauncher(const ExperimentSpec& spec) {
  const CommandWords command(spec.entrypoint);
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (launcher && launcher->name == "deepspeed") CheckIncluded(command, *launcher);
  for (const CommandLineOf& line : CommandLinesOf(spec)) {
    const std::optional<RankLauncher> other = FindRankLauncher(line.command);
    if (!other || other->num_ranks.value_or(spec.slots_per_trial) == spec.slots_per_trial) continue;
    Throw(ErrorCode::kInvalidArgument,
          "entrypoint: {}{} would start {} ranks, expected {} as in resources.slots_per_trial",
          other->name, line.place.empty() ? "" : " in " + line.place, *other->num_ranks,
          spec.slots_per_trial);
  }
}

}  // namespace dsat
