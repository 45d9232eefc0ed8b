// TCP sockets and their addresses, for the ranks of several hosts.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace dsat::engine {

// An IPv4 or IPv6 address and a port. Its bytes have the same meaning on every rank.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t bytes);
  // The address of a connection or listener on this side, and of a connection on the other side.
  static SocketAddress OfThisSide(int fd);
  static SocketAddress OfOtherSide(int fd);

  int port() const;
  // This host at another port; all addresses of this host; another host at this port.
  SocketAddress WithPort(int port) const;
  SocketAddress Wildcard() const;
  SocketAddress OnHostOf(const SocketAddress& other) const { return other.WithPort(port()); }
  bool is_loopback() const;

  std::string Host() const;      // "10.0.0.3", "fd00::3".
  std::string ToString() const;  // "10.0.0.3:29500", "[fd00::3]:29500".

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t bytes() const;

 private:
  sockaddr_storage storage_{};
};

// The addresses of a host, given by a name or a number. Throws kNotFound naming it, or kUnavailable
// if the name server does not answer.
std::vector<SocketAddress> Resolve(const std::string& host, int port);

// The sockets below are closed on exec and non-blocking.

// Listens at `address`; port 0 means any free port. Throws naming the address.
UniqueFd ListenAt(const SocketAddress& address);

// A connection to `address`; empty, with errno set, if there is none by `deadline`.
UniqueFd ConnectTo(const SocketAddress& address, std::chrono::steady_clock::time_point deadline);

// Sets the options of a connection: small messages are sent at once, and an idle connection to a
// host that has vanished ends within half a minute.
void Tune(int fd);

// Waits for `events` (poll's) on `fd`; false after the deadline.
bool WaitFor(int fd, short events, std::chrono::steady_clock::time_point deadline);

}  // namespace dsat::engine
