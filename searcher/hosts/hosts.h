// The hosts and slots on which trials run, and the environment of ranks there: DeepSpeed's
// hostfile, its filters, and its .deepspeed_env.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dsat {

// A limit, so that a mistyped number does not exhaust memory.
inline constexpr int64_t kMostSlotsOfHost = 4096;

// A machine on which ranks are started.
struct Host {
  std::string name;            // For ssh: HOST or USER@HOST.
  std::vector<int64_t> slots;  // Device indices on that machine, ascending.
  bool operator==(const Host&) const = default;
};

// Selects hosts and slots of a hostfile, by `include`, or `exclude`, or the two numbers.
//
// A filter is NAME[:SLOT[,SLOT...]][@NAME...]. A NAME without slots selects all of its slots; a
// NAME that occurs several times selects all slots given with it. The longest matching name of the
// hostfile is used, so that USER@HOST and addresses with colons work, too.
struct HostFilters {
  std::string include = {};  // "" = everything
  std::string exclude = {};  // "" = nothing
  int64_t num_nodes = 0;     // The number of first hosts to use; 0 = all.
  int64_t num_gpus = 0;      // Slots 0 to num_gpus - 1 of each host; 0 = all.
};

// The command that runs a command on a host, whose name is its first further argument. It does not
// ask for a password and ends if the host has not answered for 45 s.
inline constexpr char kDefaultSsh[] =
    "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15";

// Throws kInvalidArgument unless `name` is safe as an argument of ssh and of a shell: only letters,
// digits and . _ - : [ ], optionally after USER@; neither part begins with '-'.
void CheckHostName(const std::string& name);

// The hosts of a file of lines "NAME slots=N", in its order, with the slots 0 to N - 1. Text after
// the number, blank lines and lines that begin with '#' are ignored. Throws an Error naming the
// file and the line if it cannot be read, a line has another form, a host occurs twice, or there is
// no host.
std::vector<Host> ReadHostfile(const std::string& path);

// Throws kInvalidArgument if the filters exclude each other.
void ValidateFilters(const HostFilters& filters);

// The hosts and slots that `filters` select, in the order of `hosts`, without hosts that have no
// slot. Throws kInvalidArgument as ValidateFilters, or if a filter is malformed, names a host or
// slot that does not exist, asks for more than there are, or selects nothing.
std::vector<Host> SelectHosts(const std::vector<Host>& hosts, const HostFilters& filters);

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
