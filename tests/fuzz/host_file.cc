// A hostfile and the filters of its hosts.
#include <vector>

#include "searcher/hosts/hosts.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The hostfile; --include-hosts; --exclude-hosts.
void HostFile(std::string_view input) {
  const auto parts = Parts(input, 3);
  const std::vector<Host> hosts = ReadHostfile(WriteInput("hostfile", parts[0]));
  SelectHosts(hosts, {.include = std::string(parts[1]), .exclude = std::string(parts[2])});
}

}  // namespace dsat::fuzz
