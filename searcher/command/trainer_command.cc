// Fills in what a command leaves to its trainer, its launcher or its cluster.
//
// Hugging Face's rules are those of transformers/integrations/deepspeed.py (trainer_config_process)
// and of accelerate/accelerator.py (_prepare_deepspeed).
#include "searcher/command/trainer_command.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/parse_number.h"
#include "base/regex.h"
#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "engine/config/strategies.h"
#include "engine/config/validate.h"
#include "proto/launch_settings.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/import_hook.h"
#include "searcher/command/rank_launcher.h"

namespace dsat {
namespace {

// Lets "module.file:Trial", a trial class, be driven by python/dsat/determined.py.
void DriveTrialClass(ExperimentSpec* spec) {
  static const RE2 kTrialClass(R"([A-Za-z_][\w.]*:[A-Za-z_]\w*)", RegexOptions());
  std::vector<std::string>& argv = spec->entrypoint;
  if (argv.size() == 1 && RE2::FullMatch(argv[0], kTrialClass))
    argv = {"python3", "-m", "determined.launch.deepspeed", "--trial", argv[0]};
}

// Replaces each {name} of a hyperparameter by its value.
void FillHyperparameters(ExperimentSpec* spec) {
  CommandWords command(spec->entrypoint);
  for (size_t i = 0; i < command.words().size(); ++i) {
    std::string word = command.words()[i].text;
    for (const auto& [name, value] : spec->hyperparameters.items()) {
      const std::string placeholder = "{" + name + "}", text = WordOf(value);
      if (placeholder == kConfigPlaceholder) continue;
      size_t at = word.find(placeholder);
      for (; at != word.npos; at = word.find(placeholder, at)) {
        const bool is_variable = at > 0 && word[at - 1] == '$';
        if (!is_variable) word.replace(at, placeholder.size(), text);
        at += is_variable ? placeholder.size() : text.size();
      }
    }
    if (word == command.words()[i].text) continue;
    if (command.words()[i].expands)
      Throw(ErrorCode::kInvalidArgument,
            "{}: /entrypoint has {}, in which a shell's variable and a hyperparameter stand "
            "together; expected them in words of their own",
            spec->config_path, command.words()[i].text);
    command.Replace({i}, word);
  }
  spec->entrypoint = command.Changed();
}

// "python3 -m determined.launch.deepspeed ... COMMAND".
std::optional<std::string> DropClusterLauncher(ExperimentSpec* spec) {
  CommandWords command(spec->entrypoint);
  const std::vector<CommandWord>& words = command.words();
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    const std::string& module = words[i + 1].text;
    if (words[i].text != "-m" || !module.starts_with("determined.launch.")) continue;
    size_t begin = i + 2;  // The first word of COMMAND.
    for (size_t k = begin; k < words.size() && !words[k].first; ++k) {
      if (words[k].text == "--trial" || words[k].text.starts_with("--trial="))
        return std::nullopt;  // The ranks know the module (python/dsat/determined.py).
      if (words[k].text == "--") begin = k + 1;
    }
    if (begin == words.size()) return std::nullopt;
    size_t python = i - 1;  // The interpreter; options of its own may follow.
    while (python > 0 && !words[python].first && !IsPython(words[python].text))
      --python;
    const bool is_script = words[begin].text.ends_with(".py");
    std::string dropped = fmt::format("-m {}", module);
    command.Remove(is_script ? i : python, begin);
    spec->entrypoint = command.Changed();
    return fmt::format("{} in the entrypoint is left out: dsat starts the ranks itself", dropped);
  }
  return std::nullopt;
}

// The value that a file of YAML or JSON gives a key; "" if it gives none.
std::string ValueIn(const std::string& path, const std::string& key) {
  const RE2 line(
      fmt::format(R"re((?m)(?:^|[{{,])[ \t]*["']?{}["']?[ \t]*:[ \t]*["']?([^\s"'#,}}]+))re", key),
      RegexOptions());
  std::string value;
  RE2::PartialMatch(ReadOrEmpty(path), line, &value);
  return value;
}

// The value that a file of arguments among the command's words gives an argument, as in
// "llamafactory-cli train sft.yaml"; "" if none gives it.
std::string ValueInFiles(const CommandWords& command, const ExperimentSpec& spec,
                         const std::string& argument) {
  for (const CommandWord& word : command.words()) {
    const bool is_file =
        word.text.ends_with(".yaml") || word.text.ends_with(".yml") || word.text.ends_with(".json");
    const std::string value =
        is_file ? ValueIn(std::filesystem::path(spec.model_dir) / word.text, argument) : "";
    if (!value.empty()) return value;
  }
  return "";
}

// The file that accelerate's arguments name as its own config.
std::optional<ArgumentPart> FileOfAccelerate(const CommandWords& command) {
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (!launcher || launcher->name != "accelerate") return std::nullopt;
  return LauncherValue(command, *launcher, "--config_file");
}

// accelerate's own config may name the ds_config.
std::optional<std::string> NameAcceleratesConfig(ExperimentSpec* spec) {
  CommandWords command(spec->entrypoint);
  const std::optional<ArgumentPart> file = FileOfAccelerate(command);
  const std::string config = ValueOfAccelerate(command, spec->model_dir, "deepspeed_config_file");
  if (config.empty() || NamesConfig(*spec)) return std::nullopt;
  command.InsertBehind(file->index, {"--deepspeed_config_file", config});
  spec->entrypoint = command.Changed();
  return fmt::format(
      "--deepspeed_config_file {} of {} is given in the entrypoint, so that trials can have their "
      "own",
      config, TextOf(command, *file));
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

// Returns the trainer's arguments that the command's script shows (python/dsat/_script.py); an
// empty object if there is no script or it cannot be read.
Json FactsOfScript(const CommandWords& command, const ExperimentSpec& spec) {
  const std::optional<size_t> script = ScriptOf(command);
  const std::string python = PythonFolder();
  if (!script || python.empty()) return Json::object();
  const auto path = std::filesystem::path(spec.model_dir) / command.words()[*script].text;
  if (!std::filesystem::is_regular_file(path)) return Json::object();
  const Json facts =
      AskPython(spec, {"-I", "-S", python + "/dsat/_script.py", std::filesystem::absolute(path)});
  return facts.is_object() ? facts : Json::object();
}

class Resolver {
 public:
  Resolver(const std::string& source, ExperimentSpec* spec)
      : source_(source),
        spec_(*spec),
        command_(spec->entrypoint),
        script_(FactsOfScript(command_, *spec)),
        parses_(script_.value("parses", false)),
        reads_file_(script_.value("reads_file", false) && FindFlag(command_, "--config")) {}

  std::vector<std::string> Resolve() {
    if (engine::IsAuto(spec_.ds_config.value("train_batch_size", Json())))
      spec_.ds_config.erase("train_batch_size");
    const bool by_total = spec_.ds_config.contains("train_batch_size");
    for (const BatchArgument& argument : kBatchArguments)
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
  void ResolveBatch(const BatchArgument& argument, bool by_total) {
    const Json given = spec_.ds_config.value(argument.key, Json());
    const auto flag = FindFlag(command_, argument.flag);
    std::optional<int64_t> number =
        NumberIn(flag ? TextOf(command_, *flag) : ValueInFiles(command_, spec_, argument.flag + 2));
    if (number && given.is_number_integer() && given != *number)
      notes_.push_back(
          fmt::format("{}: /{} is {}, and the command's {} is {}: trials follow the "
                      "config; by itself, the trainer refuses such a command",
                      source_, argument.key, given.dump(), argument.flag, *number));
    const Json* shown = FindAtPointer(script_, fmt::format("/numbers/{}", argument.flag + 2));
    if (shown != nullptr && !flag && !reads_file_ && !number) number = shown->get<int64_t>();
    if (!flag && parses_) {
      if (given.is_number_integer()) number = given.get<int64_t>();
      if (number) added_.insert(added_.end(), {argument.flag, std::to_string(*number)});
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
                                   flag ? "says" : "is in the script, in its file, or by default"));
  }

  static std::optional<int64_t> NumberIn(const std::string& text) {
    const std::optional<int64_t> number = ParseNumber<int64_t>(text);
    return number && *number >= 1 ? number : std::nullopt;
  }

  [[noreturn]] void Refuse(const BatchArgument& argument, const std::string& text) const {
    const std::optional<size_t> script = ScriptOf(command_);
    const auto path = std::filesystem::path(spec_.model_dir) /
                      (script ? command_.words()[*script].text : std::string());
    if (!std::filesystem::exists(path))
      Throw(ErrorCode::kInvalidArgument, "{}: no such file, which the command starts",
            path.string());
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
  Json script_;      // FactsOfScript().
  bool parses_;      // It parses TrainingArguments from the command line.
  bool reads_file_;  // It also reads the file of --config, which has precedence over defaults.
  std::vector<std::string> added_ = {};
  std::vector<std::string> notes_ = {};
};

// A train_batch_size that the two other sizes reach with another number of ranks than those with
// samples of their own tells that ranks share samples in a way that the config does not say, or
// that DeepSpeed counts those that share tensors. DeepSpeed derives it by itself.
std::optional<std::string> DropTotal(const std::string& source, ExperimentSpec* spec) {
  const auto size = [&](const char* key) {
    const Json value = spec->ds_config.value(key, Json());
    return value.is_number_integer() ? value.get<int64_t>() : 0;
  };
  const int64_t total = size("train_batch_size");
  int64_t of_one = 0;
  const bool is_huge =
      __builtin_mul_overflow(size(kBatchArguments[0].key), size(kBatchArguments[1].key), &of_one);
  if (is_huge || of_one < 1 || total < 1 || total % of_one != 0) return std::nullopt;
  const int64_t ranks = total / of_one;
  if (spec->slots_per_trial % ranks != 0 ||
      ranks == engine::DataParallelSize(spec->ds_config, source, spec->slots_per_trial))
    return std::nullopt;
  spec->ds_config.erase("train_batch_size");
  return fmt::format(
      "{}: /train_batch_size is {}, for different samples on {} of {} ranks; trials leave it out, "
      "so that DeepSpeed derives it",
      source, total, ranks, spec->slots_per_trial);
}

// DeepSpeed ignores offload_param below stage 3; trials at stage 3 would begin to obey it.
std::optional<std::string> DropParamOffload(const std::string& source, ExperimentSpec* spec) {
  const Json* zero = FindAtPointer(spec->ds_config, "/zero_optimization");
  const Json* device = FindAtPointer(spec->ds_config, "/zero_optimization/offload_param/device");
  const Json* stage = FindAtPointer(spec->ds_config, "/zero_optimization/stage");
  const bool is_below =
      zero != nullptr && (stage == nullptr || (stage->is_number_integer() && *stage < 3));
  if (!is_below || device == nullptr || (*device != "cpu" && *device != "nvme"))
    return std::nullopt;
  const std::string text = device->dump();
  spec->ds_config["zero_optimization"].erase("offload_param");
  return fmt::format(
      "{}: /zero_optimization/offload_param/device is {}, which DeepSpeed ignores below ZeRO stage "
      "3; trials leave the section out",
      source, text);
}

void MarkOwnConfig(ExperimentSpec* spec) {
  CommandWords command(spec->entrypoint);
  ExperimentSpec nowhere = *spec;
  nowhere.ds_config_path.clear();
  std::set<size_t> known;  // Words that name a config whatever it is called.
  for (const ArgumentPart& part : FindConfigArguments(command, nowhere))
    known.insert(part.index);
  for (const ArgumentPart& part : FindConfigArguments(command, *spec)) {
    if (!known.contains(part.index)) command.Replace(part, kConfigPlaceholder);
  }
  spec->entrypoint = command.Changed();
}

// Whether the command has an argument of Hugging Face's trainer, or its script shows `fact`.
bool ShowsTrainer(const ExperimentSpec& spec, const char* fact) {
  const CommandWords command(spec.entrypoint);
  return FindFlag(command, kBatchArguments[0].flag) ||
         FactsOfScript(command, spec).value(fact, false);
}

}  // namespace

std::string ValueOfAccelerate(const CommandWords& command, const std::string& folder,
                              const std::string& key) {
  const std::optional<ArgumentPart> file = FileOfAccelerate(command);
  return file ? ValueIn(std::filesystem::path(folder) / TextOf(command, *file), key) : "";
}

std::vector<std::string> CompleteCommand(const std::string& source, ExperimentSpec* spec) {
  std::vector<std::string> notes;
  DriveTrialClass(spec);
  FillHyperparameters(spec);
  if (const auto note = DropClusterLauncher(spec)) notes.push_back(*note);
  if (const auto note = NameAcceleratesConfig(spec)) notes.push_back(*note);
  const std::vector<std::string> resolved = Resolver(source, spec).Resolve();
  notes.insert(notes.end(), resolved.begin(), resolved.end());
  if (const auto note = DropTotal(source, spec)) notes.push_back(*note);
  if (const auto note = DropParamOffload(source, spec)) notes.push_back(*note);
  MarkOwnConfig(spec);
  return notes;
}

bool RunsTrainer(const ExperimentSpec& spec) {
  return ShowsTrainer(spec, "runs_trainer");
}

bool ParsesTrainerArguments(const ExperimentSpec& spec) {
  return ShowsTrainer(spec, "parses");
}

std::vector<std::string> CheckCommandConfig(const std::string& source, ExperimentSpec* spec) {
  std::vector<std::string> lines = CompleteCommand(source, spec);
  engine::RefuseOwnKeys(spec->ds_config, source);
  const std::vector<std::string> warnings =
      engine::ValidateDsConfig(spec->ds_config, source, spec->slots_per_trial).warnings;
  lines.insert(lines.end(), warnings.begin(), warnings.end());
  return lines;
}

}  // namespace dsat
