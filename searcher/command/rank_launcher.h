// Finds the launcher that starts the ranks of the user's own command.
#ifndef DSAT_SEARCHER_COMMAND_RANK_LAUNCHER_H_
#define DSAT_SEARCHER_COMMAND_RANK_LAUNCHER_H_

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
std::optional<RankLauncher> FindRankLauncher(const std::vector<std::string>& argv);

// True if the command that begins at words()[first] is Python, a script of it, or a launcher.
bool IsPythonAt(const CommandWords& command, size_t first);

// Throws kInvalidArgument if the launcher of spec.entrypoint starts another number of ranks than
// spec.slots_per_trial, is hidden in a variable of the shell, wholly or with some of its options,
// or is DeepSpeed's and selects devices by their names.
void CheckRankLauncher(const ExperimentSpec& spec);

}  // namespace dsat

#endif  // DSAT_SEARCHER_COMMAND_RANK_LAUNCHER_H_
