// The network addresses of hosts of which only the names are known.
#pragma once

#include <string>

namespace dsat {

// Numeric addresses, "" if the name of the host is unknown here.
struct Route {
  std::string there;  // The host's address.
  std::string here;   // Our own address as seen from the host.
};

// The route to a host of this name or address. Sends nothing, but may wait for a name server.
Route RouteTo(const std::string& name);

}  // namespace dsat
