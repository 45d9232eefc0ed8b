// The experiment file of a command.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dsat {

// A command as it is typed in a folder. Its launcher says how many ranks there are, and its
// arguments which ds_config. Without a launcher there is one rank.
struct TypedCommand {
  std::vector<std::string> words;
  std::string folder;
  std::function<int64_t()> count_gpus;  // Is asked if the launcher would take all GPUs.
};

// Returns the experiment file (docs/experiment-file.md) of the command in YAML. Throws
// kInvalidArgument naming what the command does not show, and how to say it.
std::string ExperimentFileOf(const TypedCommand& command);

// Writes the file to dsat-out/commands of the command's folder, under the name of its script and,
// if another command has that one, a number. Returns its path. Throws as ExperimentFileOf and
// WriteFileAtomic.
std::string WriteExperimentFile(const TypedCommand& command);

}  // namespace dsat
