// A gRPC server that listens on this machine, and the token of its callers.
#include "searcher/service_listener.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "base/unique_fd.h"
#include "proto/client.h"

namespace dsat {
namespace {

constexpr std::chrono::seconds kShutdownGrace{1};
constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::string_view kAbstractPrefix = "unix-abstract:";

bool IsUnix(const std::string& address) {
  return address.starts_with(kUnixPrefix);
}

bool IsAbstract(const std::string& address) {
  return address.starts_with(kAbstractPrefix);
}

std::string SocketPath(const std::string& address) {
  return address.substr(kUnixPrefix.size());
}

[[noreturn]] void ThrowTaken(const std::string& address, const char* by) {
  Throw(ErrorCode::kAlreadyExists, "address {}: {} is already there; expected a free address",
        address, by);
}

// True if a server accepts connections at this address.
bool Answers(const sockaddr_un& name, size_t length) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) ThrowErrno("socket", errno);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&name),
                 static_cast<socklen_t>(length)) == 0;
}

// gRPC silently replaces an existing socket, even that of a running server.
void CheckSocketFree(const std::string& address) {
  const std::string path = SocketPath(address);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return;
  if (!S_ISSOCK(info.st_mode)) ThrowTaken(address, "a file that is not a socket");
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  if (Answers(name, sizeof(name))) ThrowTaken(address, "another server");
}

// The name follows a NUL and ends at the length.
void CheckNameFree(const std::string& address) {
  const std::string text = address.substr(kAbstractPrefix.size());
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  text.copy(name.sun_path + 1, sizeof(name.sun_path) - 1);
  const size_t length = offsetof(sockaddr_un, sun_path) + 1 + text.size();
  if (Answers(name, length)) ThrowTaken(address, "another server");
}

// Checked here because gRPC would print a long message to stderr. "localhost" is checked at
// 127.0.0.1.
void CheckPortFree(const std::string& address) {
  const bool v6 = address.starts_with('[');
  const auto port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  sockaddr_in name4{};
  name4.sin_family = AF_INET;
  name4.sin_port = htons(port);
  name4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 name6{};
  name6.sin6_family = AF_INET6;
  name6.sin6_port = htons(port);
  name6.sin6_addr = in6addr_loopback;
  const auto* name =
      v6 ? reinterpret_cast<const sockaddr*>(&name6) : reinterpret_cast<const sockaddr*>(&name4);
  const UniqueFd fd(socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) ThrowErrno("socket", errno);
  const int on = 1;  // As gRPC does: a port with connections in TIME_WAIT is free.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), name, v6 ? sizeof(name6) : sizeof(name4)) == 0) return;
  if (errno == EADDRINUSE) ThrowTaken(address, "another server");
  ThrowErrno("address " + address, errno);
}

void CheckFree(const std::string& address) {
  if (IsUnix(address)) return CheckSocketFree(address);
  if (IsAbstract(address)) return CheckNameFree(address);
  CheckPortFree(address);
}

// "127.0.0.1:0" with the port that was found.
std::string WithPort(const std::string& address, int port) {
  return fmt::format("{}:{}", address.substr(0, address.rfind(':')), port);
}

}  // namespace

std::string RandomToken() {
  std::array<unsigned char, 16> bytes;
  if (getentropy(bytes.data(), bytes.size()) != 0) ThrowErrno("getentropy", errno);
  std::string token;
  for (const unsigned char byte : bytes)
    token += fmt::format("{:02x}", byte);
  return token;
}

bool SameToken(std::string_view sent, std::string_view token) {
  if (sent.size() != token.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < token.size(); ++i) {
    difference |= static_cast<unsigned char>(sent[i] ^ token[i]);
  }
  return difference == 0;
}

Listener::Listener(const std::string& address, grpc::Service* service) : address_(address) {
  // An abstract name disappears however this process ends. It is as hard to guess as the token, so
  // that no other process can have used it.
  if (address_.empty()) address_ = fmt::format("{}dsat-{}", kAbstractPrefix, RandomToken());
  CheckFree(address_);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
  // Otherwise two servers could share one port and each get some of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    Throw(
        ErrorCode::kUnavailable,
        "address {}: cannot listen there; expected an address of this machine and a port that this "
        "user may use, or a socket path in a folder that exists and is writable",
        address_);
  }
  if (IsUnix(address_)) {
    chmod(SocketPath(address_).c_str(), S_IRUSR | S_IWUSR);
  } else if (!IsAbstract(address_)) {
    address_ = WithPort(address_, port);
  }
}

Listener::~Listener() {
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_->Wait();
}

}  // namespace dsat
