// The options that choose the hosts on which trials run.
#ifndef DSAT_CLI_FLAGS_HOSTS_H_
#define DSAT_CLI_FLAGS_HOSTS_H_

#include "cli/flags_parser.h"

namespace dsat::cli {

// Whether the filters of hosts also have DeepSpeed's names, --include and --exclude.
enum class FilterNames { kLong, kAndDeepSpeeds };
// Adds the options to `app` and returns --hostfile.
CLI::Option* AddHosts(CLI::App& app, HostFlags& hosts, FilterNames names);
// Throws kInvalidArgument if the options contradict each other.
void CheckHostFlags(const HostFlags& hosts);

}  // namespace dsat::cli

#endif  // DSAT_CLI_FLAGS_HOSTS_H_
