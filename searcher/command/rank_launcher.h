// Finds the launcher that starts the ranks of the user's own command.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "searcher/command/command_words.h"

namespace dsat {

// A program that starts the ranks itself.
struct RankLauncher {
  std::string name;       // "deepspeed", "torchrun", "accelerate"
  size_t args_begin = 0;  // words()[args_begin, args_end) are the launcher's own arguments.
  size_t args_end = 0;
  std::string port_flag, ranks_flag;
  std::optional<int64_t> num_ranks;  // If its arguments give it.
  std::optional<int64_t> port;       // Likewise.
  bool needs_port = false;           // The arguments choose no port or rendezvous.
};
std::optional<RankLauncher> FindRankLauncher(const CommandWords& command);

// The first value of `flag`, which has underscores, among the launcher's own arguments.
std::optional<ArgumentPart> LauncherValue(const CommandWords& command, const RankLauncher& launcher,
                                          std::string_view flag);

// The program that each rank of a command runs. The words behind it are its arguments.
struct RankProgram {
  size_t starter = 0;      // words()[starter] is Python, a launcher, or the script itself.
  size_t begin = 0;        // words()[begin] is the script or module, if there is such a word.
  bool is_module = false;  // It is a module of Python.
};
// nullopt if the command that begins at words()[first] is neither Python nor a script of it nor a
// launcher, behind variables and wrappers such as "uv run".
std::optional<RankProgram> RankProgramAt(const CommandWords& command, size_t first);

// The first line of the file of a program, which is found as a shell does from spec.model_dir; ""
// if there is none.
std::string FirstLineOf(const std::string& program, const ExperimentSpec& spec);

// Whether the entrypoint starts its ranks itself, so that it runs once on each host: by a launcher,
// by one in a file that a shell runs ("bash run.sh", "./run.sh") or in a variable of a shell, or as
// a program of Python that pip has installed, such as `trl`.
bool StartsRanks(const ExperimentSpec& spec);

// The shell's file or variable that runs `deepspeed` for the entrypoint, where it cannot be told of
// several hosts; "" if none does.
std::string HiddenDeepSpeed(const ExperimentSpec& spec);

// Throws kInvalidArgument if the launcher of spec.entrypoint, or one that it runs by a shell's file
// or variable, starts another number of ranks than spec.slots_per_trial, or if it is DeepSpeed's
// and selects devices by their names.
void CheckRankLauncher(const ExperimentSpec& spec);

}  // namespace dsat
