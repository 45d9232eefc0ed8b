// The hosts of a hostfile as machines that ranks can be started on.
#ifndef DSAT_SEARCHER_HOSTS_REACH_HOSTS_H_
#define DSAT_SEARCHER_HOSTS_REACH_HOSTS_H_

#include <map>
#include <string>
#include <vector>

#include "searcher/hosts/hosts.h"
#include "searcher/hosts/launch_host.h"

namespace dsat {

// How hosts are reached, and what their ranks are told.
struct HostAccess {
  std::string ssh = kDefaultSsh;  // A command line; what follows it is a host and a command there.
  std::string master_addr = {};   // The first host's address; "" = the one by which ssh reaches it.
  std::map<std::string, std::string> environment = {};  // Of every rank, below its own.
};

struct ReachedHosts {
  std::vector<LaunchHost> hosts;
  std::string runner_address;  // Of this machine, as the other hosts see it; "" = all is here.
};

// Asks all hosts at once who they are. "localhost" and this machine's own name are this machine,
// without ssh. Throws kUnavailable naming every host that cannot be reached, or does not answer
// within a minute, or has no dsat at this one's path; kFailedPrecondition if it has another
// version.
ReachedHosts ReachHosts(const std::vector<Host>& hosts, const HostAccess& access,
                        const std::string& dsat_binary);

}  // namespace dsat

#endif  // DSAT_SEARCHER_HOSTS_REACH_HOSTS_H_
