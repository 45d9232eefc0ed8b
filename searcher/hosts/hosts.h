// Which hosts trials run on, and which of their slots: DeepSpeed's hostfile and its filters.
#ifndef DSAT_SEARCHER_HOSTS_HOSTS_H_
#define DSAT_SEARCHER_HOSTS_HOSTS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dsat {

// A machine that ranks are started on.
struct Host {
  std::string name;            // As ssh takes it: HOST or USER@HOST.
  std::vector<int64_t> slots;  // Device indices on that machine, ascending.
  bool operator==(const Host&) const = default;
};

// Which of a hostfile's hosts and slots to use. Either `include`, or `exclude`, or the two numbers.
//
// A filter is NAME[:SLOT[,SLOT...]][@NAME...]. A NAME without slots stands for all of them; one
// that occurs several times, for all slots written with it. Names are those of the hostfile, the
// longest that fits, so that USER@HOST and addresses with colons can be written, too.
struct HostFilters {
  std::string include = {};  // "" = everything
  std::string exclude = {};  // "" = nothing
  int64_t num_nodes = 0;     // The first so many hosts; 0 = all.
  int64_t num_gpus = 0;      // Slots 0 to num_gpus - 1 of each host; 0 = all.
};

// The command that runs its further arguments on a host, named by the first of them.
// It asks for no password, and ends when the host has not answered for 45 s.
inline constexpr char kDefaultSsh[] =
    "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15";

// Throws kInvalidArgument unless `name` can be handed to ssh and to a shell as it is: letters,
// digits and . _ - : [ ] only, at most with USER@ before it, neither part beginning with '-'.
void CheckHostName(const std::string& name);

// The hosts of a file of lines "NAME slots=N", in its order, with the slots 0 to N - 1. What
// follows the number is ignored, and so are blank lines and lines that begin with '#'. Throws an
// Error naming the file, and the line, if it cannot be read, a line is something else, a host
// occurs twice, or there is none.
std::vector<Host> ReadHostfile(const std::string& path);

// Throws kInvalidArgument if the filters exclude each other.
void ValidateFilters(const HostFilters& filters);

// The hosts and slots that `filters` leave, in the order of `hosts`; hosts without a slot are
// dropped. Throws kInvalidArgument as ValidateFilters, or if a filter cannot be read, names a host
// or slot that is not there, asks for more than there is, or leaves nothing.
std::vector<Host> SelectHosts(const std::vector<Host>& hosts, const HostFilters& filters);

}  // namespace dsat

#endif  // DSAT_SEARCHER_HOSTS_HOSTS_H_
