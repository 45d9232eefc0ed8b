// TCP sockets and their addresses, for the ranks of several hosts.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/link.h"

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

// The first bytes on every connection of a group.
struct Hello {
  static constexpr std::array<char, 8> kMagic{'d', 's', 'a', 't', 'g', 'r', 'p', '1'};
  enum class Purpose : int32_t { kJoin, kCollectives, kMessages };

  std::array<char, 8> magic = kMagic;
  uint64_t token = 0;  // Shows that the sender belongs to the group.
  Purpose purpose = Purpose::kJoin;
  int32_t size = 0;
  int32_t rank = 0;
  int32_t pid = 0;
  int32_t port = 0;  // kJoin: the port at which this rank listens.
  int32_t reserved = 0;
};

// Accepts the connections of a group's members and rejects all others: any process may connect. A
// connection that does not send a Hello within some seconds is closed and does not delay the
// others. Not thread-safe.
class Acceptor {
 public:
  struct Arrival {
    UniqueFd fd;
    Hello hello;  // Has the magic number; the caller checks the rest.
  };

  // `listener` is non-blocking.
  explicit Acceptor(UniqueFd listener) : listener_(std::move(listener)) {}

  // The next connection that has sent a complete hello; nullopt after the deadline. Throws if this
  // process cannot accept connections.
  std::optional<Arrival> Next(std::chrono::steady_clock::time_point deadline);

 private:
  // A connection whose hello is not complete.
  struct Pending {
    Link link;
    Hello hello;
    std::chrono::steady_clock::time_point deadline;
  };

  void Accept();
  std::optional<Arrival> Listen();

  UniqueFd listener_;
  std::list<Pending> pending_;  // A list: links write to the hellos, which must not move.
};

}  // namespace dsat::engine
