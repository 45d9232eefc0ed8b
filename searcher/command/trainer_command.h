// Fills in what a command leaves to its trainer, its launcher or its cluster.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "searcher/command/command_words.h"

namespace dsat {

// Changes the entrypoint and the ds_config of an experiment with a command so that they say what
// runs:
// * A trial class, "module:Class", becomes the command that drives it.
// * {name} becomes the value of the hyperparameter.
// * "python3 -m determined.launch.deepspeed [--] COMMAND" becomes COMMAND: dsat starts the ranks.
//   With --trial it stays.
// * "accelerate launch --config_file F" gets --deepspeed_config_file if F names such a file.
// * Batch sizes of "auto", or missing ones, get the numbers that Hugging Face's trainer takes from
//   its arguments, in the command or written in the script, or their defaults, and fp16 and bf16 of
//   "auto" become true if its arguments say so. Other values of "auto" stay for the trainer.
// * If the script is Hugging Face's, missing arguments for batch sizes are added.
// * A train_batch_size that shows that ranks share samples (pipelines, tensor parallelism) goes.
// * offload_param below stage 3, which DeepSpeed ignores, goes.
// * The path of the experiment's own ds_config becomes {ds_config}, so that the command still says
//   where a config goes when another one is trained with.
// Returns a line for each change but the first two. `source` names the ds_config in errors. Throws
// kInvalidArgument if a batch size is "auto" and the command does not show what the trainer sets in
// its place.
std::vector<std::string> CompleteCommand(const std::string& source, ExperimentSpec* spec);

// CompleteCommand, then every check of the ds_config: the only ones of a command's config that make
// warnings. Returns the lines of both. Throws as CompleteCommand, RefuseOwnKeys and
// ValidateDsConfig.
std::vector<std::string> CheckCommandConfig(const std::string& source, ExperimentSpec* spec);

// The value that the file of "accelerate launch --config_file FILE" gives a key (FILE is relative
// to `folder`); "" if there is none.
std::string ValueOfAccelerate(const CommandWords& command, const std::string& folder,
                              const std::string& key);

// Whether a trainer of Hugging Face or Lightning runs in the command, which clips gradients by an
// argument of its own, as far as the command's arguments and its script show.
bool RunsTrainer(const ExperimentSpec& spec);

// Whether the command's script takes the arguments of Hugging Face's trainer from its command line,
// such as --deepspeed, as far as both show.
bool ParsesTrainerArguments(const ExperimentSpec& spec);

}  // namespace dsat
