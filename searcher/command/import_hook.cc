// Finds the Python code, and asks the user's Python.
#include "searcher/command/import_hook.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "proto/launch_settings.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/rank_launcher.h"

namespace dsat {

namespace fs = std::filesystem;

namespace {

// The JSON object that a shell's command prints; null if it prints none.
Json AnswerOf(const std::string& command) {
  const std::string text = RunShell(command + " </dev/null").text;
  const Json answer = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return answer.is_object() ? answer : Json();
}

// Says in the request what each rank runs.
void AddProgram(const CommandWords& command, const RankProgram& program, Json& request) {
  std::vector<std::string> words;
  for (const CommandWord& word : command.words())
    words.push_back(word.text);
  const auto begin = words.begin() + static_cast<std::ptrdiff_t>(program.begin);
  std::vector<std::string> arguments(begin + 1, words.end());
  request["script"] = *begin;
  request["is_module"] = program.is_module;
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  request["is_launched"] = launcher.has_value();
  if (launcher && launcher->name == "deepspeed" &&
      std::find(words.begin(), begin, "--no_local_rank") == begin)
    arguments.insert(arguments.begin(), "--local_rank=0");
  request["arguments"] = arguments;
  const bool is_accelerate = launcher && launcher->name == "accelerate";
  if (is_accelerate) {
    words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(launcher->args_begin));
    request["accelerate"] = words;
  }
  if (request["ranks"] == 0 && !is_accelerate)
    request["ranks"] = launcher ? launcher->num_ranks.value_or(1) : 1;
}

}  // namespace

std::string PythonFolder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> folders = {program.parent_path() / "python",
                                   program.parent_path().parent_path() / "share/dsat/python",
                                   DSAT_PYTHON_SOURCE};
  if (const char* const given = std::getenv("DSAT_PYTHON_DIR")) folders = {given};
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / "hook/sitecustomize.py", error)) return fs::absolute(folder);
  }
  return "";
}

std::string PythonPath(const std::string& python_folder, const std::string& rest) {
  if (python_folder.empty()) return rest;
  return fmt::format("{0}/hook:{0}{1}{2}", python_folder, rest.empty() ? "" : ":", rest);
}

Json AskPython(const ExperimentSpec& spec, const std::vector<std::string>& arguments) {
  const std::string& program = spec.entrypoint.at(0);
  std::string command = fmt::format("cd {} && timeout 10 {}", ShellWord(spec.model_dir),
                                    ShellWord(IsPython(program) ? program : "python3"));
  for (const std::string& argument : arguments)
    command += " " + ShellWord(argument);
  return AnswerOf(command + " 2>/dev/null");
}

Json DryRunRequest(const ExperimentSpec& spec, const Json& ds_config) {
  Json config = ConfigForTrial(ConfigForScript(spec, ds_config, /*has_hook=*/true));
  config.erase(kLaunchSection);  // The command and its environment have it.
  Json environment = spec.environment;
  environment.update(Json(FileForRanks(spec, config)));
  return {{"command", ArgvForTrial(spec, ds_config, kConfigPlaceholder, std::nullopt)},
          {"ds_config", std::move(config)},
          {"folder", spec.model_dir},
          {"environment", std::move(environment)},
          {"ranks", spec.slots_per_trial},
          {"memory", spec.device_memory_bytes}};
}

std::string DryRunCommand(Json request) {
  CommandWords command(request.at("command").get<std::vector<std::string>>());
  if (command.in_shell()) {
    Throw(ErrorCode::kInvalidArgument,
          "a dry run starts the script's Python itself, and a shell's command hides it; give the "
          "command that trains: dsat estimate -- python train.py");
  }
  const std::vector<CommandWord>& words = command.words();
  const std::optional<RankProgram> ranks = RankProgramAt(command, 0);
  if (!ranks || ranks->begin >= words.size()) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: expected python, torchrun, deepspeed or accelerate launch, and the script, or "
          "python -m "
          "and the module of an installed program",
          fmt::join(request["command"].get<std::vector<std::string>>(), " "));
  }
  AddProgram(command, *ranks, request);
  const std::string& starter = words[ranks->starter].text;
  std::string python = IsPython(starter) ? starter : "python3";
  const fs::path beside = fs::path(starter).parent_path() / "python3";
  if (!IsPython(starter) && beside.has_parent_path() && fs::exists(beside)) python = beside;
  const char* const inherited = std::getenv("PYTHONPATH");
  const std::string ours =
      request["environment"].value("PYTHONPATH", inherited == nullptr ? "" : inherited);
  request["environment"].erase("PYTHONPATH");
  // The import hook runs where this variable is set. Variables and wrappers of the command follow.
  std::string line = fmt::format("cd {} && exec env PYTHONPATH={} {}=/dev/null DSAT_MEASURE=memory",
                                 ShellWord(request.at("folder")),
                                 ShellWord(PythonPath(PythonFolder(), ours)), kConfigVariable);
  for (size_t i = 0; i < ranks->starter; ++i)
    command.InsertIntoList(i, "PYTHONPATH=", PythonPath(PythonFolder(), ""));
  const std::vector<std::string> changed = command.Changed();
  for (size_t i = 0; i < ranks->starter; ++i)
    line += " " + ShellWord(changed[i]);
  return fmt::format("{} {} -m dsat._dry_run {}", line, ShellWord(python),
                     ShellWord(request.dump()));
}

Json DryRun(const Json& request) {
  const std::string command = DryRunCommand(request);
  const Json answer = AnswerOf(command);
  if (answer.is_null())
    Throw(ErrorCode::kFailedPrecondition, "dsat._dry_run ended without an answer: {}", command);
  if (answer.contains("error"))
    Throw(ErrorCode::kFailedPrecondition, "{}", answer["error"].get<std::string>());
  return answer;
}

}  // namespace dsat
