// Reads what a command names: an experiment file, whose warnings it logs, a device, a setting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "db/store.h"
#include "profiler/planner.h"
#include "proto/experiment.h"
#include "searcher/input/experiment_file.h"

namespace dsat::cli {

// Logs the warnings that this process has not logged yet: several checks may find the same.
void Warn(const std::vector<std::string>& warnings);
// Reads an experiment file and logs its warnings.
ExperimentSpec ReadSpec(const std::string& config, const std::string& model_dir);
// The command behind "--" on this machine.
TypedCommand Typed(const std::vector<std::string>& words);
// Writes the experiment file of a search that has a command in its place
// (searcher/input/experiment_file.h), and names it and the current folder in the flags.
void DescribeCommand(SearchFlags* search);
// Replaces the ds_config by that of a file or a strategy, and logs what it means for a command.
void UseDsConfig(const std::string& path, ExperimentSpec& spec);
// Sets a key of a ds_config as "/KEY=JSON" says. Throws kInvalidArgument for another form.
void ApplySetting(const std::string& setting, Json& ds_config);

// Opens the database of a new experiment. It is created unless the experiment starts from an
// earlier one, which has to be there. Throws as Store::Open.
Store OpenForNew(const std::string& db, const ExperimentSpec& spec);

// The device of a name (engine::ClusterOf), or of a JSON file: {"like": NAME, ...}, with own
// figures in place of some of that device's (docs/estimate.md). Throws kInvalidArgument naming the
// file and the key, and as ReadJsonFile.
engine::Cluster ClusterFor(const std::string& device);

// Sets the bytes that `text` says, unless it is empty. Throws kInvalidArgument naming `what` for 0
// and as ParseBytes.
void SetSize(const std::string& text, const std::string& what, int64_t& bytes);

}  // namespace dsat::cli
