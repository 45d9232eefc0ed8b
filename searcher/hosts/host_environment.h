// The environment variables that ranks on other hosts get: DeepSpeed's rules.
#ifndef DSAT_SEARCHER_HOSTS_HOST_ENVIRONMENT_H_
#define DSAT_SEARCHER_HOSTS_HOST_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

namespace dsat {

// The variables among `environment` ("NAME=VALUE" each) that every host needs: those that begin
// with MLFLOW, MV2, NCCL, PYTHON or UCX.
std::map<std::string, std::string> ExportedVariables(const std::vector<std::string>& environment);

// The variables of the files `name` in `dirs`, of which a later one wins; what is not there is
// skipped. A line is NAME=VALUE, without the blanks around it and otherwise to the letter: quotes
// and dollar signs stay. Blank lines and lines that begin with '#' are ignored. An absolute `name`
// is that file. Throws an Error naming file and line for all other lines.
std::map<std::string, std::string> ReadDeepSpeedEnv(const std::string& name,
                                                    const std::vector<std::string>& dirs);

}  // namespace dsat

#endif  // DSAT_SEARCHER_HOSTS_HOST_ENVIRONMENT_H_
