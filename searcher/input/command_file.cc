// Reads from a command what an experiment file says of it.
#include "searcher/input/command_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/command/trainer_command.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// The name of the command's script without its ending, or of its program.
std::string NameOf(const CommandWords& command) {
  const std::vector<CommandWord>& words = command.words();
  const auto script = std::ranges::find_if(
      words, [](const CommandWord& word) { return word.text.ends_with(".py"); });
  return fs::path((script == words.end() ? words.front() : *script).text).stem().string();
}

// The ds_config that the command names, as it is written there.
std::string DsConfigOf(const CommandWords& command, const std::string& folder) {
  ExperimentSpec nothing;
  const std::vector<ArgumentPart> parts = FindConfigArguments(command, nothing);
  if (!parts.empty()) return TextOf(command, parts.front());
  const std::optional<std::string> config = ConfigOfAccelerate(command, folder);
  if (config) return *config;
  Throw(ErrorCode::kInvalidArgument,
        "the command behind -- names no ds_config: expected --deepspeed FILE.json or "
        "--deepspeed_config FILE.json in it; if the script has its config as a dict, write an "
        "experiment file (docs/experiment-file.md)");
}

int64_t SlotsOf(const CommandWords& command, const std::function<int64_t()>& count_gpus) {
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (!launcher) return 1;
  if (launcher->num_ranks) return *launcher->num_ranks;
  const int64_t num_gpus = launcher->name == "deepspeed" ? count_gpus() : 0;
  if (num_gpus > 0) return num_gpus;
  Throw(ErrorCode::kInvalidArgument,
        "the command behind -- does not say how many ranks {} starts: add {} N to it",
        launcher->name, launcher->ranks_flag);
}

}  // namespace

std::string ExperimentFileOf(const TypedCommand& command) {
  const CommandWords words(command.words);
  DSAT_CHECK(!words.words().empty(), "an empty command");
  const std::string config = DsConfigOf(words, command.folder);
  return fmt::format(
      "# What dsat tunes: this command, with the settings of its ds_config.\n"
      "# docs/experiment-file.md has the other keys, such as search_space.\n"
      "name: {}\n"
      "entrypoint: {}\n"
      "resources:\n"
      "  slots_per_trial: {}  # The ranks that the command starts.\n"
      "hyperparameters:\n"
      "  deepspeed_config: {}\n",
      Json(NameOf(words)).dump(), Json(command.words).dump(), SlotsOf(words, command.count_gpus),
      Json(config).dump());
}

std::string WriteExperimentFile(const TypedCommand& command) {
  const std::string text = ExperimentFileOf(command);
  const std::string name = NameOf(CommandWords(command.words));
  const fs::path parent = fs::path(command.folder) / "dsat-out" / "commands";
  fs::create_directories(parent);
  for (int number = 1;; ++number) {
    const std::string path =
        (parent / fmt::format("{}{}.yaml", name, number == 1 ? "" : fmt::format("-{}", number)))
            .string();
    if (fs::exists(path) && ReadOrEmpty(path) != text) continue;
    WriteFileAtomic(path, text);
    return path;
  }
}

}  // namespace dsat
