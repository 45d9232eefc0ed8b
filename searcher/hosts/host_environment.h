// The environment variables of ranks on other hosts, by DeepSpeed's rules.
#ifndef DSAT_SEARCHER_HOSTS_HOST_ENVIRONMENT_H_
#define DSAT_SEARCHER_HOSTS_HOST_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

namespace dsat {

// The variables among `environment` ("NAME=VALUE" each) that every host needs: those that begin
// with MLFLOW, MV2, NCCL, PYTHON or UCX.
std::map<std::string, std::string> ExportedVariables(const std::vector<std::string>& environment);

// The variables of the files `name` in `dirs`; a later file has precedence and a missing one is
// skipped. A line is NAME=VALUE; blanks around it are removed, but quotes and dollar signs are
// kept. Blank lines and lines that begin with '#' are ignored. An absolute `name` is that file.
// Throws an Error naming file and line for all other lines.
std::map<std::string, std::string> ReadDeepSpeedEnv(const std::string& name,
                                                    const std::vector<std::string>& dirs);

}  // namespace dsat

#endif  // DSAT_SEARCHER_HOSTS_HOST_ENVIRONMENT_H_
