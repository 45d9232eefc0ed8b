// A gRPC server that listens at a unix socket of this user, or with TLS on the network.
#include "searcher/service/service_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/resource_quota.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/parse_number.h"
#include "base/unique_fd.h"
#include "proto/client.h"
#include "searcher/service/frame_check.h"
#include "searcher/service/run_keys.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kShutdownGrace{1};
constexpr std::string_view kUnixPrefix = "unix:";
// The size of sockaddr_un.sun_path without the NUL that ends a path.
constexpr size_t kMostPathBytes = 107;

// The server itself may use this much for its clients, besides the limits of the door.
constexpr size_t kMostMemoryBytes = size_t{128} << 20;
constexpr int kNumThreads = 32;
constexpr int kOtherThreads = 16;           // About as many as gRPC begins with for itself.
constexpr int kMostMessageBytes = 8 << 20;  // The losses of a million steps.

bool IsUnix(const std::string& address) {
  return address.starts_with(kUnixPrefix);
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

sockaddr_un UnixName(const std::string& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  SocketPath(address).copy(name.sun_path, kMostPathBytes);
  return name;
}

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
  const sockaddr_un name = UnixName(address);
  const bool connects = connect(MakeSocket(AF_UNIX).get(), reinterpret_cast<const sockaddr*>(&name),
                                sizeof(name)) == 0;
  const int error = connects ? 0 : errno;
  if (error == 0 || error == EAGAIN) ThrowTaken(address, "another server");
  unlink(path.c_str());
}

// A socket of a path gets it before it is readable by others.
UniqueFd BindUnix(const std::string& address) {
  RemoveOldSocket(address);
  UniqueFd fd = MakeSocket(AF_UNIX);
  const sockaddr_un name = UnixName(address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    if (errno == EADDRINUSE) ThrowTaken(address, "another server");
    ThrowCannotListen(address);
  }
  chmod(SocketPath(address).c_str(), S_IRUSR | S_IWUSR);
  return fd;
}

// `address` is HOST:PORT; gets the port that was found.
UniqueFd BindPort(std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = address.substr(colon + 1);
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found); error != 0) {
    Throw(ErrorCode::kUnavailable, "address {}: {}; expected a name or address of this machine",
          address, gai_strerror(error));
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

// Throws kInvalidArgument unless it is "unix:/PATH" or HOST:PORT.
void CheckAddress(const std::string& address) {
  if (IsUnix(address)) {
    const size_t size = SocketPath(address).size();
    const bool is_absolute = address.starts_with("unix:/");
    if (is_absolute && size <= kMostPathBytes) return;
    Throw(ErrorCode::kInvalidArgument,
          "address {}: expected unix: and an absolute path of at most {} bytes", Printable(address),
          kMostPathBytes);
  }
  const size_t colon = address.rfind(':');
  const bool has_host = colon != address.npos && colon > 0;
  if (has_host && ParseNumber<uint16_t>(address.substr(colon + 1))) return;
  Throw(ErrorCode::kInvalidArgument,
        "address {}: expected unix:/absolute/path, whose clients are this user's, or HOST:PORT, "
        "whose clients have the run's key",
        Printable(address));
}

// gRPC logs what clients have sent, as it is and any number of times. dsat's own errors say what
// matters; GRPC_VERBOSITY shows the rest.
void LogForGrpc(gpr_log_func_args* line) {
  if (std::getenv("GRPC_VERBOSITY") != nullptr)
    fmt::print(stderr, "gRPC: {}\n", Printable(std::string_view(line->message).substr(0, 500)));
}

std::unique_ptr<grpc::Server> StartServer(grpc::Service* service) {
  StartGrpc(kNumThreads + kOtherThreads);
  gpr_set_log_function(LogForGrpc);
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("dsat");
  builder.SetResourceQuota(quota.Resize(kMostMemoryBytes).SetMaxThreads(kNumThreads));
  // All threads start with the server: one that cannot be started later would cost a call.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, kNumThreads);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, kNumThreads);
  builder.SetMaxReceiveMessageSize(kMostMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCallsOfConnection);
  // Otherwise it allows clients larger frames and more bytes on the way when they send much.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  DSAT_CHECK(server != nullptr);
  return server;
}

}  // namespace

Listener::Listener(const std::string& address, grpc::Service* service) : address_(address) {
  UniqueFd listening;
  RunKeys keys;
  if (address_.empty()) {
    listening = BindUnnamed(&path_, &address_);
  } else if (CheckAddress(address_); IsUnix(address_)) {
    listening = BindUnix(address_);
    file_ = FileOf(address_);
  } else {
    listening = BindPort(address_);
    keys = MakeRunKeys();
    key_ = keys.client;
  }
  if (listen(listening.get(), SOMAXCONN) != 0) ThrowCannotListen(address_);
  server_ = StartServer(service);
  door_ = std::make_unique<Door>(std::move(listening), keys.server, [this](int fd) {
    grpc::AddInsecureChannelFromFd(server_.get(), fd);
  });
}

Listener::~Listener() {
  // Somebody may have removed the file, and another server listen there.
  if (file_ && FileOf(address_) == *file_) unlink(SocketPath(address_).c_str());
  door_->StopAccepting();
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_->Wait();
  door_.reset();
}

}  // namespace dsat
