// The experiment file: an ordinary single-run file in YAML (docs/experiment-file.md).
#ifndef DSAT_SEARCHER_INPUT_EXPERIMENT_FILE_H_
#define DSAT_SEARCHER_INPUT_EXPERIMENT_FILE_H_

#include <string>
#include <vector>

#include "proto/experiment.h"

namespace dsat {

// Reads and checks an experiment file and the ds_config it names. Relative paths in it start at
// `model_dir`, or at the file's own folder if that is "". The method and the search options are
// left at their defaults: they come from the command line. Adds to `warnings` one line for each key
// that is legal but without meaning here. Throws kNotFound or kPermissionDenied by name,
// kInvalidArgument
// "<file>:<line>: /pointer ..." for everything else.
ExperimentSpec ReadExperimentFile(const std::string& path, const std::string& model_dir,
                                  std::vector<std::string>* warnings);

}  // namespace dsat

#endif  // DSAT_SEARCHER_INPUT_EXPERIMENT_FILE_H_
