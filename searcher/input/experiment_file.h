// The experiment file: an ordinary single-run file in YAML (docs/experiment-file.md).
#pragma once

#include <string>
#include <vector>

#include "proto/experiment.h"

namespace dsat {

// Reads and checks an experiment file and the ds_config that it names. Relative paths in it are
// relative to `model_dir`, or to the file's own folder if that is "". The method and the search
// options keep their defaults, because they are given on the command line. Adds one line to
// `warnings` for each key that has no meaning here. Throws kNotFound or kPermissionDenied naming
// the file, kInvalidArgument "<file>:<line>: /pointer ..." for all other errors.
ExperimentSpec ReadExperimentFile(const std::string& path, const std::string& model_dir,
                                  std::vector<std::string>* warnings);

}  // namespace dsat
