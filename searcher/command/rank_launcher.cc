// Finds the launcher that starts the ranks of the user's own command.
#include "searcher/command/rank_launcher.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <string_view>

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
// Words that may stand before a program and run it.
constexpr std::array<std::string_view, 5> kPrefixes = {"env", "exec", "nohup", "time", "setsid"};
// A program that runs another one behind arguments of its own.
struct Wrapper {
  std::string_view name;
  std::string_view subcommand;  // It alone runs a program; "" = there are none.
  size_t num_values;            // Its arguments before the program, without options.
  std::string_view options;     // The options with a value, each between spaces.
};
constexpr std::array kWrappers = {
    Wrapper{"uv", "run", 0,
            " --with -w --with-editable --with-requirements --python -p --python-platform --project"
            " --directory --extra --no-extra --group --no-group --only-group --env-file --package"
            " --index --default-index --index-url -i --extra-index-url --find-links -f"
            " --upgrade-package -P --refresh-package --reinstall-package --no-binary-package"
            " --no-build-package --config-setting -C --index-strategy --keyring-provider"
            " --resolution --prerelease --exclude-newer --link-mode --cache-dir --config-file"
            " --color "},
    Wrapper{"poetry", "run", 0, " --directory -C --project -P "},
    Wrapper{"conda", "run", 0, " --name -n --prefix -p --cwd "},
    Wrapper{"timeout", "", 1, " --kill-after -k --signal -s "},
    Wrapper{"nice", "", 0, " --adjustment -n "},
};
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

// The number that the launcher's own arguments give for `flag`.
std::optional<int64_t> LauncherCount(const CommandWords& command, const RankLauncher& launcher,
                                     std::string_view flag) {
  for (size_t i = launcher.args_begin; !flag.empty() && i < launcher.args_end; ++i) {
    if (const auto value = ValueOfFlag(command, i, flag))
      return ParseNumber<int64_t>(TextOf(command, *value));
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

// The index of the program that the wrapper words()[i] runs; nullopt if it is none or runs none.
std::optional<size_t> ProgramBehindWrapper(const CommandWords& command, size_t i) {
  const std::vector<CommandWord>& words = command.words();
  const auto* const wrapper = std::ranges::find(kWrappers, BaseName(words[i].text), &Wrapper::name);
  if (wrapper == kWrappers.end()) return std::nullopt;
  bool awaits_subcommand = !wrapper->subcommand.empty();
  size_t values = wrapper->num_values;
  for (size_t k = i + 1; k < words.size() && !words[k].first; ++k) {
    const std::string& text = words[k].text;
    if (text.starts_with('-')) {
      if (wrapper->options.find(" " + text + " ") != std::string_view::npos) ++k;
    } else if (awaits_subcommand) {
      if (text != wrapper->subcommand) return std::nullopt;
      awaits_subcommand = false;
    } else if (values > 0) {
      --values;
    } else {
      return k;
    }
  }
  return std::nullopt;
}

// The program of the command that begins at words()[i], behind variables, prefixes and wrappers;
// the last of these if it has none.
size_t ProgramAt(const CommandWords& command, size_t i) {
  const std::vector<CommandWord>& words = command.words();
  const auto is_prefix = [](const std::string& word) {
    return word.find('=') != std::string::npos || IsIn(kPrefixes, BaseName(word));
  };
  while (true) {
    while (i + 1 < words.size() && !words[i + 1].first && is_prefix(words[i].text))
      ++i;
    const std::optional<size_t> program = ProgramBehindWrapper(command, i);
    if (!program) return i;
    i = *program;
  }
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

// The index of MODULE in "python3 ... -m MODULE", where words()[i] is Python; 0 if it runs none.
size_t ModuleAt(const CommandWords& command, size_t i) {
  const std::vector<CommandWord>& words = command.words();
  if (!IsPython(words[i])) return 0;
  for (size_t k = i + 1; k + 1 < words.size() && words[k].text.starts_with('-'); ++k) {
    if (words[k].text == "-m") return k + 1;
    if (words[k].text == "-W" || words[k].text == "-X") ++k;  // These have values.
  }
  return 0;
}

// The launcher that the program words()[i] is.
std::optional<RankLauncher> LauncherAt(const CommandWords& command, size_t i) {
  const std::vector<CommandWord>& words = command.words();
  const size_t module = ModuleAt(command, i);
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

bool IsPythonAt(const CommandWords& command, size_t first) {
  const size_t program = ProgramAt(command, first);
  const CommandWord& word = command.words()[program];
  return IsPython(word) || word.text.ends_with(".py") || LauncherAt(command, program);
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
