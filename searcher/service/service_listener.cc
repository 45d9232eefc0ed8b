// A gRPC server that listens at a unix socket of this user, or with TLS on the network, behind a
// door that limits what its clients may cost.
#include "searcher/service/service_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/parse_number.h"
#include "base/temporary_folder.h"
#include "proto/client.h"
#include "searcher/service/frame_check.h"
#include "searcher/service/relay.h"
#include "searcher/service/tls.h"

namespace dsat {
namespace {

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
  address = fmt::format("{}:{}", address.substr(0, colon), ntohs(bound.sin6_port));
  return fd;
}

// A socket that has no name: others reach it through the descriptor `*path` of this process, which
// only this user may open, and which ends with this process however that ends.
UniqueFd BindUnnamed(UniqueFd* path, std::string* address) {
  const TemporaryFolder folder;
  const std::string name = folder.path() + "/socket";
  UniqueFd fd = BindUnix(std::string(kUnixPrefix) + name);
  *path = UniqueFd(open(name.c_str(), O_PATH | O_CLOEXEC));
  if (!*path) ThrowErrno(name, errno);
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

using Clock = Relay::Clock;

constexpr rlim_t kMostDescriptors = 16384;
constexpr size_t kMostConnections = 2048;
constexpr size_t kDescriptorsPerConnection = 8;  // It has three; the rest is for other things.
constexpr size_t kMostUnproven = 128;            // Connections without an answered call.
constexpr int64_t kMostUnfinishedBytes = int64_t{32} << 20;  // The sum over all connections.
// Calls that their clients give up keep the server busy for a moment. Nobody gets in while there
// are more of them than the server has dealt with.
constexpr double kWastedPerSecond = 1000;
constexpr double kMostWasted = 256;
constexpr std::chrono::milliseconds kSweep{100};

// The number of connections for which there are descriptors, whose limit is raised first.
size_t CountConnections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) ThrowErrno("the limit of descriptors", errno);
  const rlimit wanted = {std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors)),
                         limit.rlim_max};
  const rlim_t granted = setrlimit(RLIMIT_NOFILE, &wanted) == 0 ? wanted.rlim_cur : limit.rlim_cur;
  return std::clamp<size_t>(granted / kDescriptorsPerConnection, 1, kMostConnections);
}

// True unless the other end of a unix socket is another user than this one and root.
bool IsOurUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == 0 || peer.uid == geteuid());
}

}  // namespace

// Who comes in, and what one client may cost.
//
// A stranger costs one of 128 connections for at most 10 s. gRPC sees none of their bytes, and of
// clients only what FrameCheck and the limits here and in relay.cc let through. A connection
// that has to go for another one is that of a stranger, if there is one, or else the quietest.
class Door {
 public:
  // Raises this process's limit of descriptors. Accepts at `listening`, which does not block. The
  // other end of a unix socket must belong to this user or root. With `key` (RunKeys::server) the
  // other end must show the run's key of clients by TLS 1.3 instead. `hand_over` is called on the
  // door's thread with the unencrypted side of each connection, which it then owns. Throws
  // kUnavailable if there is no thread or descriptor for that.
  Door(UniqueFd listening, const std::string& key, std::function<void(int)> hand_over)
      : listening_(std::move(listening)),
        hand_over_(std::move(hand_over)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        most_connections_(CountConnections()) {
    if (!wake_) ThrowErrno("the door of a server", errno);
    if (!key.empty()) tls_.emplace(key);
    thread_ = std::thread([this] { Run(); });
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  // Closes all connections.
  ~Door() {
    ends_ = true;
    Wake();
    thread_.join();
  }
  // Closes the listening socket. Connections continue.
  void StopAccepting() {
    accepts_ = false;
    Wake();
  }

 private:
  void Wake() { eventfd_write(wake_.get(), 1); }
  void Run();
  void HandleEvents();
  int WaitMs() const;
  void Accept();
  bool Step(Relay* relay);
  void Close(Relay* relay);
  bool CloseQuietest();
  bool CloseGreediest();
  void Sweep();

  UniqueFd listening_;
  std::function<void(int)> hand_over_;
  UniqueFd wake_;
  std::optional<TlsContext> tls_;
  size_t most_connections_;
  std::vector<std::unique_ptr<Relay>> relays_;
  bool is_exhausted_ = false;  // Nobody comes in before the next sweep.
  double wasted_ = 0;          // Calls that clients have given up and the server may still have.
  Clock::time_point woke_ = Clock::now(), swept_ = woke_;
  std::atomic<bool> ends_ = false, accepts_ = true;
  std::thread thread_;  // Last: it uses the others.
};

void Door::Run() {
  sigset_t broken_pipes;  // OpenSSL writes without MSG_NOSIGNAL.
  sigemptyset(&broken_pipes);
  sigaddset(&broken_pipes, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipes, nullptr);
  while (!ends_) {
    try {
      HandleEvents();
    } catch (const std::exception&) {  // A shortage of memory costs a connection.
      if (!CloseQuietest()) std::this_thread::sleep_for(kSweep);
    }
  }
}

void Door::HandleEvents() {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0},
                             {is_exhausted_ ? -1 : listening_.get(), POLLIN, 0}};
  // The end of a connection is an event of every descriptor that is watched.
  const auto watch = [&fds](int fd, short events) {
    fds.push_back({events == 0 ? -1 : fd, events, 0});
  };
  for (const auto& relay : relays_) {
    watch(relay->outside(), relay->OutsideEvents());
    watch(relay->inside(), relay->InsideEvents());
  }
  poll(fds.data(), fds.size(), WaitMs());
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
  for (size_t i = relays_.size(); i-- > 0;) {  // Backwards, because some are closed.
    Relay* const relay = relays_[i].get();
    const bool has_news = fds[2 * i + 2].revents != 0 || fds[2 * i + 3].revents != 0;
    if (!has_news && !relay->waits_for_turn()) continue;
    if (!Step(relay)) {
      Close(relay);
    } else if (relay->unfinished_bytes() > 0 && CloseGreediest()) {
      break;  // The others have their turns in the next round.
    }
  }
  if (fds[1].revents != 0 && accepts_) Accept();
  if (!accepts_) listening_.Reset();
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(woke_, now)).count();
  wasted_ = std::max(0.0, wasted_ - seconds * kWastedPerSecond);
  if (now - swept_ >= kSweep) Sweep();
}

int Door::WaitMs() const {
  constexpr int kPauseMs = 5;
  int wait_ms = static_cast<int>(kSweep.count());
  for (const auto& relay : relays_) {
    if (relay->waits_for_turn()) wait_ms = std::min(wait_ms, relay->is_paused() ? kPauseMs : 0);
  }
  return wait_ms;
}

void Door::Accept() {
  const auto proven = static_cast<size_t>(std::ranges::count_if(relays_, &Relay::is_proven));
  if (relays_.size() - proven >= kMostUnproven || relays_.size() >= most_connections_)
    CloseQuietest();
  UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    is_exhausted_ = is_short && !CloseQuietest();
    return;
  }
  if (!tls_ && !IsOurUser(fd.get())) return;
  const int on = 1;  // As gRPC does; these fail for a unix socket.
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  relays_.push_back(std::make_unique<Relay>(std::move(fd), tls_, hand_over_));
  if (!Step(relays_.back().get())) Close(relays_.back().get());
}

// Returns whether the connection stays.
bool Door::Step(Relay* relay) {
  const int64_t resets = relay->num_resets();
  const bool stays = relay->Step(/*may_enter=*/wasted_ <= kMostWasted);
  wasted_ += static_cast<double>(relay->num_resets() - resets);
  return stays;
}

void Door::Close(Relay* relay) {
  wasted_ += static_cast<double>(relay->num_open());
  std::erase_if(relays_, [relay](const auto& other) { return other.get() == relay; });
}

// Closes the connection over which nothing has moved for the longest time, that of a stranger if
// there is one, or else one without an answered call. Returns whether there is any.
bool Door::CloseQuietest() {
  if (relays_.empty()) return false;
  Close(std::ranges::min_element(relays_, {}, [](const auto& relay) {
          return std::tuple(relay->is_proven(), !relay->is_stranger(), relay->moved());
        })->get());
  return true;
}

// Closes the connection with the most unfinished messages if all have too much. Returns whether
// they have.
bool Door::CloseGreediest() {
  int64_t sum = 0;
  for (const auto& relay : relays_)
    sum += relay->unfinished_bytes();
  if (sum <= kMostUnfinishedBytes) return false;
  Close(std::ranges::max_element(relays_, {}, &Relay::unfinished_bytes)->get());
  return true;
}

void Door::Sweep() {
  swept_ = Clock::now();
  std::vector<Relay*> overdue;
  for (const auto& relay : relays_)
    if (relay->IsOverdue(swept_)) overdue.push_back(relay.get());
  for (Relay* const relay : overdue)
    Close(relay);
  is_exhausted_ = false;
}

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
