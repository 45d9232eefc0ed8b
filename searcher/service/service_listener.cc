// A gRPC server that listens on this machine, and the token of its callers.
#include "searcher/service/service_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
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
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/unique_fd.h"
#include "proto/wire.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

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

// "127.0.0.1:0" with the port that was found.
std::string WithPort(const std::string& address, int port) {
  return fmt::format("{}:{}", address.substr(0, address.rfind(':')), port);
}

// The name of a unix socket, and its size for bind.
struct UnixName {
  explicit UnixName(const std::string& address) {
    name.sun_family = AF_UNIX;
    const bool is_abstract = IsAbstract(address);  // It follows a NUL and ends at the size.
    const std::string text = address.substr(address.find(':') + 1);
    text.copy(name.sun_path + (is_abstract ? 1 : 0), sizeof(name.sun_path) - 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }

  sockaddr_un name{};
  socklen_t size = 0;
};

UniqueFd MakeSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) ThrowErrno("socket", errno);
  return fd;
}

[[noreturn]] void ThrowCannotListen(const std::string& address) {
  Throw(ErrorCode::kUnavailable,
        "address {}: cannot listen there ({}); expected an address of this machine and a port that "
        "this user may use, or a socket path in a folder that exists and is writable",
        address, std::strerror(errno));
}

// The file of a socket, {} if there is none.
std::pair<dev_t, ino_t> FileOf(const std::string& address) {
  struct stat info {};
  if (lstat(SocketPath(address).c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

// Removes a socket whose server is gone.
void RemoveOldSocket(const std::string& address) {
  const std::string path = SocketPath(address);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return;
  if (!S_ISSOCK(info.st_mode)) ThrowTaken(address, "a file that is not a socket");
  const UnixName name(address);
  const int error = connect(MakeSocket(AF_UNIX).get(), name.get(), name.size) == 0 ? 0 : errno;
  if (error == 0 || error == EAGAIN) ThrowTaken(address, "another server");
  unlink(path.c_str());
}

// A socket of a path gets it before it is readable by others.
UniqueFd BindUnix(const std::string& address) {
  if (!IsAbstract(address)) RemoveOldSocket(address);
  UniqueFd fd = MakeSocket(AF_UNIX);
  const UnixName name(address);
  if (bind(fd.get(), name.get(), name.size) != 0) {
    if (errno == EADDRINUSE) ThrowTaken(address, "another server");
    ThrowCannotListen(address);
  }
  if (!IsAbstract(address)) chmod(SocketPath(address).c_str(), S_IRUSR | S_IWUSR);
  return fd;
}

// `address` is HOST:PORT with a numeric host or localhost; gets the port that was found.
UniqueFd BindPort(std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = address.substr(colon + 1);
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found); error != 0) {
    Throw(ErrorCode::kUnavailable, "address {}: {}; expected the number of an address", address,
          gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  UniqueFd fd = MakeSocket(found->ai_family);
  const int on = 1;  // A port with connections in TIME_WAIT is free.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0) {
    if (errno == EADDRINUSE) ThrowTaken(address, "another server");
    ThrowCannotListen(address);
  }
  sockaddr_in6 bound{};  // The port is at the same place in both families.
  socklen_t size = sizeof(bound);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    ThrowErrno("getsockname", errno);
  address = WithPort(address, ntohs(bound.sin6_port));
  return fd;
}

// A socket that has no name: others reach it through the descriptor `*path` of this process, which
// only this user may open, and which ends with this process however that ends.
UniqueFd BindUnnamed(UniqueFd* path, std::string* address) {
  const std::string folder = MakeTemporaryFolder();
  const std::string name = folder + "/socket";
  UniqueFd fd;
  try {
    fd = BindUnix(std::string(kUnixPrefix) + name);
    *path = UniqueFd(open(name.c_str(), O_PATH | O_CLOEXEC));
    if (!*path) ThrowErrno(name, errno);
  } catch (...) {
    fs::remove_all(folder);
    throw;
  }
  fs::remove_all(folder);
  *address = fmt::format("{}/proc/{}/fd/{}", kUnixPrefix, getpid(), path->get());
  return fd;
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

bool Gate::Admits(const grpc::ServerContext& context) {
  const auto sent = context.client_metadata().find(kTokenKey);
  if (sent == context.client_metadata().end()) return false;
  if (!SameToken({sent->second.data(), sent->second.size()}, token)) return false;
  if (Acceptor* const known = acceptor) known->Trust(context.peer());
  return true;
}

Listener::Listener(const std::string& address, grpc::Service* service, Gate* gate)
    : address_(address) {
  UniqueFd listening;
  if (address_.empty()) {
    listening = BindUnnamed(&path_, &address_);
  } else {
    const bool is_unix = IsUnix(address_) || IsAbstract(address_);
    listening = is_unix ? BindUnix(address_) : BindPort(address_);
    if (IsUnix(address_)) file_ = FileOf(address_);
  }
  if (listen(listening.get(), SOMAXCONN) != 0) ThrowCannotListen(address_);
  grpc::ServerBuilder builder;
  builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  DSAT_CHECK(server_ != nullptr);
  acceptor_ = std::make_unique<Acceptor>(
      std::move(listening), [this](int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); });
  gate->acceptor = acceptor_.get();
}

Listener::~Listener() {
  // Somebody may have removed the file, and another server listen there.
  if (file_ && FileOf(address_) == *file_) unlink(SocketPath(address_).c_str());
  acceptor_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_->Wait();
}

}  // namespace dsat
