// Fills in what a command leaves to its trainer, its launcher or its cluster.
//
// Hugging Face's rules are those of transformers/integrations/deepspeed.py (trainer_config_process)
// and of accelerate/accelerator.py (_prepare_deepspeed).
#include "searcher/command/trainer_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/parse_number.h"
#include "base/regex.h"
#include "engine/config/settings.h"
#include "engine/config/strategies.h"
#include "engine/config/validate.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/rank_launcher.h"

namespace dsat {
namespace {

// A batch size of Hugging Face's TrainingArguments.
struct TrainerArgument {
  const char* flag;
  const char* key;
  int64_t fallback;  // The argument's default.
};
constexpr TrainerArgument kTrainerArguments[] = {
    {"--per_device_train_batch_size", "train_micro_batch_size_per_gpu", 8},
    {"--gradient_accumulation_steps", "gradient_accumulation_steps", 1},
};

// "python3 -m determined.launch.deepspeed ... COMMAND".
std::optional<std::string> DropClusterLauncher(ExperimentSpec* spec) {
  CommandWords command(spec->entrypoint);
  const std::vector<CommandWord>& words = command.words();
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    const std::string& module = words[i + 1].text;
    if (words[i].text != "-m" || !module.starts_with("determined.launch.")) continue;
    size_t begin = i + 2;  // Of COMMAND.
    for (size_t k = begin; k < words.size() && !words[k].first; ++k) {
      if (words[k].text == "--trial" || words[k].text.starts_with("--trial="))
        Throw(ErrorCode::kInvalidArgument,
              "{}: /entrypoint runs a trial class ({} --trial); expected a command such as "
              "\"python3 train.py\", because trial classes are not supported",
              spec->config_path, module);
      if (words[k].text == "--") begin = k + 1;
    }
    if (begin == words.size()) return std::nullopt;
    size_t python = i - 1;  // The interpreter; options of its own may follow.
    while (python > 0 && !words[python].first &&
           !BaseName(words[python].text).starts_with("python"))
      --python;
    const bool is_script = words[begin].text.ends_with(".py");
    std::string dropped = fmt::format("-m {}", module);
    command.Remove(is_script ? i : python, begin);
    spec->entrypoint = command.Changed();
    return fmt::format("{} in the entrypoint is left out: dsat starts the ranks itself", dropped);
  }
  return std::nullopt;
}

// The ds_config that accelerate's own config at `path` names; "" if it names none.
std::string ConfigFileIn(const std::string& path) {
  constexpr std::string_view kKey = "deepspeed_config_file:";
  std::istringstream lines(ReadOrEmpty(path));
  for (std::string raw; std::getline(lines, raw);) {
    const std::string line = Trimmed(raw);
    const size_t begin = line.find_first_not_of(" \t'\"", kKey.size());
    if (line.starts_with(kKey) && begin != line.npos)
      return line.substr(begin, line.find_first_of(" \t'\"#", begin) - begin);
  }
  return "";
}

// accelerate's own config may name the ds_config.
std::optional<std::string> NameAcceleratesConfig(ExperimentSpec* spec) {
  CommandWords command(spec->entrypoint);
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (!launcher || launcher->name != "accelerate" || NamesConfig(*spec)) return std::nullopt;
  for (size_t i = launcher->args_begin; i < launcher->args_end; ++i) {
    const auto value = ValueOfFlag(command, i, "--config_file");
    if (!value) continue;
    const std::string file = TextOf(command, *value);
    const std::string config = ConfigFileIn(std::filesystem::path(spec->model_dir) / file);
    if (config.empty()) return std::nullopt;
    command.InsertBehind(value->index, {"--deepspeed_config_file", config});
    spec->entrypoint = command.Changed();
    return fmt::format(
        "--deepspeed_config_file {} of {} is given in the entrypoint, so that "
        "trials can have their own",
        config, file);
  }
  return std::nullopt;
}

// The word behind which arguments of the script can be added; nullopt if it has none that we know,
// or reads its arguments from a file.
std::optional<size_t> ScriptOf(const CommandWords& command) {
  const std::vector<CommandWord>& words = command.words();
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].text.ends_with(".py")) continue;
    const bool has_next = i + 1 < words.size() && !words[i + 1].first;
    const std::string next = has_next ? words[i + 1].text : "";
    const bool from_file = next.ends_with(".json") || next.ends_with(".yaml");
    return from_file ? std::nullopt : std::optional(i);
  }
  return std::nullopt;
}

// The text of the command's script; "" if it cannot be read.
std::string ReadScript(const CommandWords& command, const ExperimentSpec& spec) {
  const std::optional<size_t> script = ScriptOf(command);
  if (!script) return "";
  return ReadOrEmpty(std::filesystem::path(spec.model_dir) / command.words()[*script].text);
}

bool Has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// A Python script without its comments and the texts of its strings.
std::string CodeOf(std::string script) {
  static const RE2 kText(R"re((?s:""".*?"""|'''.*?'''))re"
                         R"re(|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*)re",
                         RegexOptions());
  RE2::GlobalReplace(&script, kText, " ");
  return script;
}

// The name before the innermost bracket that is open at `offset`, "SFTConfig" in "SFTConfig(n=8";
// "" if there is none.
std::string CallAround(const std::string& code, size_t offset) {
  int64_t depth = 0;
  size_t bracket = offset;
  while (depth <= 0 && bracket > 0) {
    const char c = code[--bracket];
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
  }
  if (depth <= 0 || code[bracket] != '(') return "";
  const std::string before = Trimmed(code.substr(0, bracket));
  size_t begin = before.size();
  while (begin > 0 && (std::isalnum(static_cast<unsigned char>(before[begin - 1])) != 0 ||
                       before[begin - 1] == '_'))
    --begin;
  return before.substr(begin);
}

// The beginning of a call that makes an object of the trainer's arguments, of transformers or TRL.
constexpr char kBuilds[] =
    R"(\b(?:\w*TrainingArguments|(?:SFT|DPO|OnlineDPO|GRPO|RLOO|KTO|ORPO|CPO|BCO|XPO|NashMD|PRM)"
    R"(|GKD|IterativeSFT|Reward)Config)\s*\()";

bool BuildsArguments(const std::string& code) {
  static const RE2 kCall(kBuilds, RegexOptions());
  return RE2::PartialMatch(code, kCall);
}

// The number in "name=8" of a script, in a call of a class of arguments; the argument's default if
// the script builds the trainer's arguments without it, and nullopt if it does not or if there are
// several.
std::optional<int64_t> NumberInScript(const std::string& script, const TrainerArgument& argument) {
  static const RE2 kUnpacks(std::string(kBuilds) + R"([^)]*\*\*)", RegexOptions());
  static const RE2 kClass(R"([A-Z]\w*(?:Config|Arguments|Args))", RegexOptions());
  const std::string code = CodeOf(script);
  const bool is_built = BuildsArguments(code);
  const std::string name = argument.flag + 2;
  if (!Has(script, name.c_str())) {
    const bool may_be_hidden = RE2::PartialMatch(code, kUnpacks);
    return is_built && !may_be_hidden ? std::optional(argument.fallback) : std::nullopt;
  }
  const RE2 assignment("\\b(" + name + R"()\s*=\s*(\d{1,9})\b)", RegexOptions());
  re2::StringPiece rest(script), found;
  int64_t number = 0;
  if (!RE2::FindAndConsume(&rest, assignment, &found, &number) || rest.find(name) != rest.npos ||
      !RE2::PartialMatch(code, assignment, &found, &number))  // Not only in a comment.
    return std::nullopt;
  const auto offset = static_cast<size_t>(found.data() - code.data());
  return is_built || RE2::FullMatch(CallAround(code, offset), kClass) ? std::optional(number)
                                                                      : std::nullopt;
}

// The classes that a parser of dataclasses is given, as "A, B); C, "; "" if there is no parser.
std::string ParsedClasses(const std::string& code) {
  static const RE2 kCall(R"(\b(?:HfArgumentParser|TrlParser)\b(\s*\([^)]*)?)", RegexOptions());
  std::string classes, given;
  for (re2::StringPiece rest(code); RE2::FindAndConsume(&rest, kCall, &given);)
    classes += given + "; ";
  return classes;
}

// Whether the script takes the trainer's arguments from its command line: it has a parser of
// dataclasses, and names a class of these arguments of which it makes no object itself.
bool ParsesArguments(const std::string& script) {
  const std::string code = CodeOf(script);
  const std::string parsed = ParsedClasses(code);
  if (parsed.empty()) return false;
  static const RE2 kClass(R"((class\s+)?\b(\w*(?:TrainingArguments|Config))\b(\s*\()?)",
                          RegexOptions());
  // Of transformers and TRL.
  static const RE2 kOfTrainer(
      R"(\w*TrainingArguments|(?:SFT|DPO|OnlineDPO|PPO|GRPO|RLOO|KTO|ORPO|CPO|BCO|XPO|NashMD|PRM)"
      R"(|GKD|DDPO|AlignProp|IterativeSFT|Reward)Config)",
      RegexOptions());
  static const RE2 kOwn("[A-Z]{2,}Config", RegexOptions());
  bool is_named = false;
  std::string definition, name, call;
  for (re2::StringPiece rest(code);
       RE2::FindAndConsume(&rest, kClass, &definition, &name, &call);) {
    const bool is_own = RE2::FullMatch(name, kOwn) && Has(parsed, name.c_str());
    if (!is_own && !RE2::FullMatch(name, kOfTrainer)) continue;
    if (definition.empty() && !call.empty()) return false;
    is_named = true;
  }
  return is_named;
}

class Resolver {
 public:
  Resolver(const std::string& source, ExperimentSpec* spec)
      : source_(source),
        spec_(*spec),
        command_(spec->entrypoint),
        script_(ReadScript(command_, *spec)),
        parses_(ParsesArguments(script_)),
        reads_file_(Has(script_, "TrlParser") && FindFlag(command_, "--config")) {}

  std::vector<std::string> Resolve() {
    if (engine::IsAuto(spec_.ds_config.value("train_batch_size", Json())))
      spec_.ds_config.erase("train_batch_size");
    const bool by_total = spec_.ds_config.contains("train_batch_size");
    for (const TrainerArgument& argument : kTrainerArguments)
      ResolveBatch(argument, by_total);
    for (const char* precision : {"fp16", "bf16"})
      ResolvePrecision(precision);
    if (!added_.empty()) {
      command_.InsertBehind(*ScriptOf(command_), added_);
      notes_.push_back(
          fmt::format("{} is added to the entrypoint, so that the trainer's arguments "
                      "and its config agree",
                      fmt::join(added_, " ")));
    }
    spec_.entrypoint = command_.Changed();
    return notes_;
  }

 private:
  void ResolveBatch(const TrainerArgument& argument, bool by_total) {
    const Json given = spec_.ds_config.value(argument.key, Json());
    const auto flag = FindFlag(command_, argument.flag);
    std::optional<int64_t> number;
    if (flag) number = NumberIn(TextOf(command_, *flag));
    if (!flag && parses_) {
      if (!reads_file_) number = argument.fallback;
      if (given.is_number_integer()) number = given.get<int64_t>();
      if (number) added_.insert(added_.end(), {argument.flag, std::to_string(*number)});
    } else if (!flag) {
      number = NumberInScript(script_, argument);
    }
    // The "auto" of a strategy is filled in by trials alone.
    const bool of_strategy = engine::FindStrategy(spec_.ds_config_path) != nullptr;
    if (engine::IsAuto(given) && !number && !of_strategy)
      Refuse(argument, flag ? TextOf(command_, *flag) : "");
    const bool is_open = engine::IsAuto(given) || (given.is_null() && !by_total);
    if (!is_open || !number) return;
    spec_.ds_config[argument.key] = *number;
    if (engine::IsAuto(given))
      notes_.push_back(fmt::format("{}: /{} is \"auto\": {}, as {} {}", source_, argument.key,
                                   *number, argument.flag,
                                   flag ? "says" : "is in the script or by default"));
  }

  static std::optional<int64_t> NumberIn(const std::string& text) {
    const std::optional<int64_t> number = ParseNumber<int64_t>(text);
    return number && *number >= 1 ? number : std::nullopt;
  }

  [[noreturn]] void Refuse(const TrainerArgument& argument, const std::string& text) const {
    const std::string seen = text.empty()
                                 ? fmt::format("the command does not give {}", argument.flag)
                                 : fmt::format("the command gives {} {}", argument.flag, text);
    Throw(ErrorCode::kInvalidArgument,
          "{}: /{} is \"auto\", and {}: dsat cannot see what the trainer sets in its place; write "
          "that number into the file, or {} NUMBER into the entrypoint if the script takes it",
          source_, argument.key, seen, argument.flag);
  }

  void ResolvePrecision(const std::string& name) {
    const Json* enabled = FindAtPointer(spec_.ds_config, "/" + name + "/enabled");
    if (enabled == nullptr || !engine::IsAuto(*enabled) || !parses_) return;
    for (size_t i = 0; i < command_.words().size(); ++i) {
      const std::string& word = command_.words()[i].text;
      if (word != "--" + name && !word.starts_with("--" + name + "=")) continue;
      const auto value = ValueOfFlag(command_, i, "--" + name);
      const std::string text = value ? TextOf(command_, *value) : "true";
      if (text == "true" || text == "True" || text == "1")
        SetAtPointer(spec_.ds_config, "/" + name + "/enabled", true);
    }
  }

  const std::string& source_;
  ExperimentSpec& spec_;
  CommandWords command_;
  std::string script_;
  bool parses_;      // TrainingArguments from the command line,
  bool reads_file_;  // and from the file of --config, which has precedence over defaults.
  std::vector<std::string> added_ = {};
  std::vector<std::string> notes_ = {};
};

// A train_batch_size that the two other sizes reach with fewer ranks than there are tells that
// ranks share samples, as in pipelines. DeepSpeed knows how many, and derives it.
std::optional<std::string> DropTotal(const std::string& source, ExperimentSpec* spec) {
  const auto size = [&](const char* key) {
    const Json value = spec->ds_config.value(key, Json());
    return value.is_number_integer() ? value.get<int64_t>() : 0;
  };
  const int64_t total = size("train_batch_size");
  int64_t of_one = 0;
  const bool is_huge = __builtin_mul_overflow(size(kTrainerArguments[0].key),
                                              size(kTrainerArguments[1].key), &of_one);
  if (is_huge || of_one < 1 || total % of_one != 0) return std::nullopt;
  const int64_t ranks = total / of_one;
  if (ranks < 1 || ranks >= spec->slots_per_trial || spec->slots_per_trial % ranks != 0)
    return std::nullopt;
  spec->ds_config.erase("train_batch_size");
  return fmt::format(
      "{}: /train_batch_size is {}: {} of {} ranks have different samples; trials leave it out, so "
      "that DeepSpeed derives it",
      source, total, ranks, spec->slots_per_trial);
}

void MarkOwnConfig(ExperimentSpec* spec) {
  CommandWords command(spec->entrypoint);
  ExperimentSpec nowhere = *spec;
  nowhere.ds_config_path.clear();
  std::set<size_t> known;  // Words that name a config whatever it is called.
  for (const ArgumentPart& part : FindConfigArguments(command, nowhere))
    known.insert(part.index);
  for (const ArgumentPart& part : FindConfigArguments(command, *spec)) {
    if (known.contains(part.index)) continue;
    std::string word = command.words()[part.index].text;
    command.Replace(part.index, word.replace(part.offset, part.length, kConfigPlaceholder));
  }
  spec->entrypoint = command.Changed();
}

}  // namespace

std::vector<std::string> CompleteCommand(const std::string& source, ExperimentSpec* spec) {
  std::vector<std::string> notes;
  if (const auto note = DropClusterLauncher(spec)) notes.push_back(*note);
  if (const auto note = NameAcceleratesConfig(spec)) notes.push_back(*note);
  const std::vector<std::string> resolved = Resolver(source, spec).Resolve();
  notes.insert(notes.end(), resolved.begin(), resolved.end());
  if (const auto note = DropTotal(source, spec)) notes.push_back(*note);
  MarkOwnConfig(spec);
  return notes;
}

bool RunsTrainer(const ExperimentSpec& spec) {
  const CommandWords command(spec.entrypoint);
  if (FindFlag(command, kTrainerArguments[0].flag)) return true;
  const std::string script = ReadScript(command, spec);
  return Has(script, "TrainingArguments") || Has(script, "DeepSpeedStrategy") ||
         BuildsArguments(CodeOf(script)) || ParsesArguments(script);
}

std::vector<std::string> CheckCommandConfig(const std::string& source, ExperimentSpec* spec) {
  std::vector<std::string> lines = CompleteCommand(source, spec);
  engine::RefuseOwnKeys(spec->ds_config, source);
  const std::vector<std::string> warnings =
      engine::ValidateDsConfig(spec->ds_config, source, spec->slots_per_trial);
  lines.insert(lines.end(), warnings.begin(), warnings.end());
  return lines;
}

}  // namespace dsat
