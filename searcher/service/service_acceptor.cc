// Accepts the connections of a gRPC server.
#include "searcher/service/service_acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace dsat {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";  // RFC 9113, 3.4.
constexpr rlim_t kMostDescriptors = 16384;
constexpr size_t kMostStrangers = 256;
// A stranger has two descriptors; the rest is for logs, the database and ranks.
constexpr size_t kDescriptorsPerStranger = 8;
constexpr int kIdleMs = 1000;  // How often the end of connections is noticed.
constexpr int kBusyMs = 2;     // The same while a new connection waits for that.

// The number of descriptors that this process may have, which is raised first.
size_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) ThrowErrno("the limit of descriptors", errno);
  const rlimit wanted = {std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors)),
                         limit.rlim_max};
  return setrlimit(RLIMIT_NOFILE, &wanted) == 0 ? wanted.rlim_cur : limit.rlim_cur;
}

ino_t InodeOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

// True unless the other end of a unix socket is another user than this one and root.
bool IsOurUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  const bool is_unix = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid != 0;
  return !is_unix || peer.uid == 0 || peer.uid == geteuid();
}

}  // namespace

Acceptor::Acceptor(UniqueFd listening, std::function<void(int fd)> hand_over)
    : listening_(std::move(listening)),
      hand_over_(std::move(hand_over)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      most_strangers_(
          std::clamp<size_t>(RaiseDescriptorLimit() / kDescriptorsPerStranger, 1, kMostStrangers)) {
  if (!stop_) ThrowErrno("eventfd", errno);
  thread_ = std::thread([this] { Run(); });
}

Acceptor::~Acceptor() {
  Stop();
}

void Acceptor::Stop() {
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Acceptor::Trust(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  for (Connection& connection : connections_) {
    if (connection.number >= 0 && peer == fmt::format("fd:{}", connection.number))
      connection.trusted = true;
  }
}

void Acceptor::Run() {
  for (bool accepts = true; Wait(accepts);) {
    const std::lock_guard lock(mutex_);
    Sweep();
    if (std::exchange(exhausted_, false) || !HasRoom()) CloseOldestStranger();
    accepts = HasRoom();
    if (accepts) Accept();
    accepts = accepts && !exhausted_;
  }
}

bool Acceptor::Wait(bool accepts) {
  std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}};
  if (accepts) fds.push_back({listening_.get(), POLLIN, 0});
  {
    const std::lock_guard lock(mutex_);
    for (const Connection& connection : connections_) {
      if (connection.number < 0) fds.push_back({connection.ours.get(), POLLIN, 0});
    }
  }
  poll(fds.data(), fds.size(), accepts ? kIdleMs : kBusyMs);
  return fds[0].revents == 0;
}

void Acceptor::Accept() {
  UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    exhausted_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    return;
  }
  if (!IsOurUser(fd.get())) return;
  const int on = 1;  // As gRPC does; fails for a unix socket.
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const ino_t inode = InodeOf(fd.get());
  connections_.push_back({.ours = std::move(fd), .inode = inode});
}

// Hands the connection to gRPC if it begins as HTTP/2 does, and closes it if it begins otherwise.
void Acceptor::HearFirstBytes(Connection& connection) {
  char bytes[kPreface.size()];
  const ssize_t size = recv(connection.ours.get(), bytes, sizeof(bytes), MSG_PEEK);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  connection.closing = size <= 0 || !kPreface.starts_with({bytes, static_cast<size_t>(size)});
  if (connection.closing) return;
  UniqueFd duplicate(fcntl(connection.ours.get(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate) {
    exhausted_ = true;
    return;
  }
  connection.number = connection.ours.Release();
  connection.ours = std::move(duplicate);
  hand_over_(connection.number);
}

// Forgets the connections that are closed. gRPC has closed one if its descriptor is another file.
void Acceptor::Sweep() {
  for (Connection& connection : connections_) {
    if (connection.number < 0 && !connection.closing) HearFirstBytes(connection);
  }
  std::erase_if(connections_, [](const Connection& connection) {
    if (connection.number < 0) return connection.closing;
    return InodeOf(connection.number) != connection.inode;
  });
}

bool Acceptor::HasRoom() const {
  const auto strangers = std::ranges::count(connections_, false, &Connection::trusted);
  return static_cast<size_t>(strangers) < most_strangers_;
}

// gRPC closes its descriptor when the connection has been shut down.
void Acceptor::CloseOldestStranger() {
  const auto oldest = std::ranges::find_if(
      connections_, [](const Connection& c) { return !c.trusted && !c.closing; });
  if (oldest == connections_.end()) return;
  shutdown(oldest->ours.get(), SHUT_RDWR);
  oldest->closing = true;
  if (oldest->number < 0) connections_.erase(oldest);
}

}  // namespace dsat
