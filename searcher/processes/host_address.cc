// Asks this machine's resolver and its table of routes for the addresses of hosts.
#include "searcher/processes/host_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "base/unique_fd.h"

namespace dsat {
namespace {

// Connecting a datagram socket sends no data, so that any port can be used.
constexpr char kDiscardPort[] = "9";

std::string NumericName(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text = {};
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text.data();
}

}  // namespace

Route RouteTo(const std::string& name) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(name.c_str(), kDiscardPort, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const UniqueFd fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (!fd || connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(fd.get(), address, &size) != 0) {
    return {};
  }
  return {NumericName(found->ai_addr, found->ai_addrlen), NumericName(address, size)};
}

}  // namespace dsat
