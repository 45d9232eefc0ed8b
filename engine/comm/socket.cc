// TCP sockets and their addresses, for the ranks of several hosts.
#include "engine/comm/socket.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The backlog for the connections of all ranks; the kernel limits it.
constexpr int kBacklog = 4096;
// After this time without an answer, a peer is considered gone.
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepIntervalSeconds = 5;
constexpr int kKeepProbes = 4;

void SetOption(int fd, int level, int name, int value) {
  if (setsockopt(fd, level, name, &value, sizeof value) != 0) ThrowErrno("socket option", errno);
}

UniqueFd MakeSocket(const SocketAddress& address) {
  return UniqueFd(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

SocketAddress NameOf(int fd, decltype(&getsockname) name_of) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (name_of(fd, address, &bytes) != 0) ThrowErrno(fmt::format("address of fd {}", fd), errno);
  return {address, bytes};
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t bytes) {
  std::memcpy(&storage_, address, std::min<size_t>(bytes, sizeof storage_));
}

SocketAddress SocketAddress::OfThisSide(int fd) {
  return NameOf(fd, getsockname);
}

SocketAddress SocketAddress::OfOtherSide(int fd) {
  return NameOf(fd, getpeername);
}

int SocketAddress::port() const {
  if (storage_.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

SocketAddress SocketAddress::WithPort(int port) const {
  SocketAddress changed = *this;
  const in_port_t number = htons(static_cast<uint16_t>(port));
  if (storage_.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&changed.storage_)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(&changed.storage_)->sin_port = number;
  }
  return changed;
}

SocketAddress SocketAddress::Wildcard() const {
  SocketAddress all;  // Zeros are the wildcard of either family.
  all.storage_.ss_family = storage_.ss_family;
  return all.WithPort(port());
}

bool SocketAddress::is_loopback() const {
  if (storage_.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
  }
  const in_addr_t host = reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr;
  return ntohl(host) >> 24 == IN_LOOPBACKNET;
}

std::string SocketAddress::Host() const {
  char host[NI_MAXHOST] = "";
  const int error =
      getnameinfo(get(), bytes(), host, sizeof host, nullptr, 0, NI_NUMERICHOST | NI_NUMERICSERV);
  return error == 0 ? host : "?";
}

std::string SocketAddress::ToString() const {
  const bool is_ipv6 = storage_.ss_family == AF_INET6;
  return is_ipv6 ? fmt::format("[{}]:{}", Host(), port()) : fmt::format("{}:{}", Host(), port());
}

socklen_t SocketAddress::bytes() const {
  return storage_.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

std::vector<SocketAddress> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &first);
  if (error != 0) {
    Throw(error == EAI_AGAIN ? ErrorCode::kUnavailable : ErrorCode::kNotFound,
          "the address of \"{}\": {}", host, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(first, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    addresses.push_back(SocketAddress(each->ai_addr, each->ai_addrlen).WithPort(port));
  }
  return addresses;
}

UniqueFd ListenAt(const SocketAddress& address) {
  UniqueFd fd = MakeSocket(address);
  const int on = 1;
  // Otherwise the connections of a group that has ended would block its port for a minute.
  if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      (address.get()->sa_family == AF_INET6 &&
       setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
      bind(fd.get(), address.get(), address.bytes()) != 0 || listen(fd.get(), kBacklog) != 0) {
    ThrowErrno(fmt::format("listening at {}", address.ToString()), errno);
  }
  return fd;
}

UniqueFd ConnectTo(const SocketAddress& address, Clock::time_point deadline) {
  UniqueFd fd = MakeSocket(address);
  if (!fd || connect(fd.get(), address.get(), address.bytes()) == 0) return fd;
  int error = errno;
  if (error == EINPROGRESS) {
    socklen_t bytes = sizeof error;
    if (!WaitFor(fd.get(), POLLOUT, deadline)) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) {
      error = errno;
    }
  }
  if (error != 0) fd.Reset();
  errno = error;
  return fd;
}

// TCP_USER_TIMEOUT is not set: it would also end connections to a live peer that does not read, and
// override the number of probes.
void Tune(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
}

bool WaitFor(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    pollfd poll_fd{fd, events, 0};
    const int result =
        poll(&poll_fd, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
    if (result > 0) return true;
    if (left.count() <= 0) return false;
  }
}

}  // namespace dsat::engine
