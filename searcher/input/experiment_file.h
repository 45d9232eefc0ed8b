// The experiment file: an ordinary single-run file in YAML (docs/experiment-file.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"

namespace dsat {

// Reads and checks an experiment file and the ds_config that it names. Relative paths in it are
// relative to `model_dir`, or to the file's own folder if that is "". The method and the search
// options keep their defaults, because they are given on the command line. Adds one line to
// `warnings` for each key that has no meaning here. Throws kNotFound or kPermissionDenied naming
// the file, kInvalidArgument "<file>:<line>: /pointer ..." for all other errors.
ExperimentSpec ReadExperimentFile(const std::string& path, const std::string& model_dir,
                                  std::vector<std::string>* warnings);

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

// The text of the file's JSON Schema (experiment.schema.json), by which dsat reads it. A key that
// is "deprecated" has no effect. One with "reader": "ranks" is read by the ranks of a command
// (python/dsat/_determined). The definition ds_config lists the keys of the key table.
extern const char kExperimentSchema[];

// The schema of the key at a JSON pointer, "" for the whole file; nullptr if there is no such key.
const Json* FindExperimentKey(const std::string& pointer);

// Whether a value is what the keywords type (a list), minimum, maximum, minLength and enum of its
// schema say. If it is not, the schema's errorMessage says what is expected.
bool Fits(const Json& schema, const Json& value);

}  // namespace dsat
