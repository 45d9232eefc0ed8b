// The Python code that dsat brings into a user's script: the package dsat and its import hook.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"

namespace dsat {

// The folder of dsat's Python package and import hook: that of DSAT_PYTHON_DIR, of a bundle, of an
// installation, or of the sources; "" if there is none.
std::string PythonFolder();

// The PYTHONPATH with which Python runs the hook of this PythonFolder() at its start, and then has
// `rest`, which may be empty; only `rest` without a folder.
std::string PythonPath(const std::string& python_folder, const std::string& rest);

// The JSON object that the experiment's Python prints with these arguments in the model directory;
// null if it prints none, fails, or takes longer than 10 s. That Python is the first word of the
// entrypoint, or else the python3 of PATH.
Json AskPython(const ExperimentSpec& spec, const std::vector<std::string>& arguments);

// The request to python/dsat/_dry_run.py for the experiment's command with `ds_config`.
Json DryRunRequest(const ExperimentSpec& spec, const Json& ds_config);

// A shell's command that answers the request: what a training needs, found out on fake tensors, in
// seconds. The request's `command`, the words that train without a shell, becomes what each rank
// runs, and `ranks` their number if it is 0. The run shows its progress on standard error. Throws
// kInvalidArgument if the command is none of a launcher or of Python.
std::string DryRunCommand(Json request);

// The answer. Throws as DryRunCommand, and kFailedPrecondition with the reason if there is none.
Json DryRun(const Json& request);

}  // namespace dsat
