// The door of a gRPC server.
#include "searcher/service/door.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "searcher/service/relay.h"

namespace dsat {
namespace {

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

class Door::Impl {
 public:
  Impl(UniqueFd listening, const std::string& key, std::function<void(int)> hand_over)
      : listening_(std::move(listening)),
        hand_over_(std::move(hand_over)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        most_connections_(CountConnections()) {
    if (!wake_ || !epoll_) ThrowErrno("the door of a server", errno);
    if (!key.empty()) tls_.emplace(key);
    Watch(wake_.get(), EPOLLIN);
    Watch(listening_.get(), EPOLLIN);
    thread_ = std::thread([this] { Run(); });
  }
  ~Impl() {
    ends_ = true;
    Wake();
    thread_.join();
  }
  void StopAccepting() {
    accepts_ = false;
    Wake();
  }

 private:
  void Wake() { eventfd_write(wake_.get(), 1); }
  void Run();
  void HandleEvents();
  int WaitMs() const;
  void Watch(int fd, uint32_t events);
  void Accept();
  void Step(Relay* relay);
  void Close(Relay* relay);
  bool CloseQuietest();
  void CloseGreediest();
  void Sweep();

  UniqueFd listening_;
  std::function<void(int)> hand_over_;
  UniqueFd wake_, epoll_;
  std::optional<TlsContext> tls_;
  size_t most_connections_;
  std::vector<std::unique_ptr<Relay>> relays_;
  std::map<int, Relay*> relay_of_;   // By both descriptors.
  std::map<int, uint32_t> watched_;  // The events that epoll waits for.
  std::set<Relay*> turns_;           // The relays that wait for no event.
  double wasted_ = 0;  // Calls that clients have given up and the server may still have.
  Clock::time_point woke_ = Clock::now(), swept_ = woke_;
  std::atomic<bool> ends_ = false, accepts_ = true;
  std::thread thread_;  // Last: it uses the others.
};

void Door::Impl::Run() {
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

void Door::Impl::HandleEvents() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), WaitMs());
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    eventfd_t ignored = 0;
    if (fd == wake_.get()) eventfd_read(fd, &ignored);
    if (fd == listening_.get() && accepts_) Accept();
    // The descriptor may have got another connection meanwhile, which an extra step does not
    // harm.
    if (const auto found = relay_of_.find(fd); found != relay_of_.end()) Step(found->second);
  }
  for (Relay* const relay : std::vector<Relay*>(turns_.begin(), turns_.end()))
    if (turns_.contains(relay)) Step(relay);
  if (!accepts_ && listening_) {
    Watch(listening_.get(), 0);
    listening_.Reset();
  }
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(woke_, now)).count();
  wasted_ = std::max(0.0, wasted_ - seconds * kWastedPerSecond);
  if (now - swept_ >= kSweep) Sweep();
}

int Door::Impl::WaitMs() const {
  constexpr int kPauseMs = 5;
  if (std::ranges::any_of(turns_, [](const Relay* relay) { return !relay->is_paused(); })) return 0;
  return turns_.empty() ? static_cast<int>(kSweep.count()) : kPauseMs;
}

// Makes epoll wait for `events` of a descriptor, or forget it if there are none.
void Door::Impl::Watch(int fd, uint32_t events) {
  const auto found = watched_.find(fd);
  const uint32_t before = found == watched_.end() ? 0 : found->second;
  if (events == before) return;
  epoll_event event{.events = events, .data = {.fd = fd}};
  const int what = before == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  epoll_ctl(epoll_.get(), what, fd, &event);
  if (events == 0) {
    watched_.erase(found);
  } else {
    watched_[fd] = events;
  }
}

void Door::Impl::Accept() {
  const auto proven = static_cast<size_t>(std::ranges::count_if(relays_, &Relay::is_proven));
  if (relays_.size() - proven >= kMostUnproven || relays_.size() >= most_connections_)
    CloseQuietest();
  UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    const bool is_exhausted =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    // The sweep listens again.
    if (is_exhausted && !CloseQuietest()) Watch(listening_.get(), 0);
    return;
  }
  if (!tls_ && !IsOurUser(fd.get())) return;
  const int on = 1;  // As gRPC does; these fail for a unix socket.
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  relays_.push_back(std::make_unique<Relay>(std::move(fd), tls_, hand_over_));
  relay_of_[relays_.back()->outside()] = relays_.back().get();
  Step(relays_.back().get());
}

void Door::Impl::Step(Relay* relay) {
  const int64_t resets = relay->num_resets();
  const bool stays = relay->Step(/*may_enter=*/wasted_ <= kMostWasted);
  wasted_ += static_cast<double>(relay->num_resets() - resets);
  if (!stays) return Close(relay);
  Watch(relay->outside(), relay->OutsideEvents());
  if (!relay->is_stranger()) {
    relay_of_[relay->inside()] = relay;
    Watch(relay->inside(), relay->InsideEvents());
  }
  if (relay->waits_for_turn()) {
    turns_.insert(relay);
  } else {
    turns_.erase(relay);
  }
  if (relay->unfinished_bytes() > 0) CloseGreediest();
}

void Door::Impl::Close(Relay* relay) {
  wasted_ += static_cast<double>(relay->num_open());
  for (const int fd : {relay->outside(), relay->inside()}) {
    Watch(fd, 0);
    relay_of_.erase(fd);
  }
  turns_.erase(relay);
  std::erase_if(relays_, [relay](const auto& other) { return other.get() == relay; });
}

// Closes the connection over which nothing has moved for the longest time, that of a stranger if
// there is one, or else one without an answered call. Returns whether there is any.
bool Door::Impl::CloseQuietest() {
  if (relays_.empty()) return false;
  Close(std::ranges::min_element(relays_, {}, [](const auto& relay) {
          return std::tuple(relay->is_proven(), !relay->is_stranger(), relay->moved());
        })->get());
  return true;
}

// Closes the connection with the most unfinished messages if all have too much.
void Door::Impl::CloseGreediest() {
  int64_t sum = 0;
  for (const auto& relay : relays_)
    sum += relay->unfinished_bytes();
  if (sum <= kMostUnfinishedBytes) return;
  Close(std::ranges::max_element(relays_, {}, &Relay::unfinished_bytes)->get());
}

void Door::Impl::Sweep() {
  swept_ = Clock::now();
  std::vector<Relay*> overdue;
  for (const auto& relay : relays_)
    if (relay->IsOverdue(swept_)) overdue.push_back(relay.get());
  for (Relay* const relay : overdue)
    Close(relay);
  if (listening_) Watch(listening_.get(), EPOLLIN);
}

Door::Door(UniqueFd listening, const std::string& key, std::function<void(int fd)> hand_over)
    : impl_(std::make_unique<Impl>(std::move(listening), key, std::move(hand_over))) {}

Door::~Door() = default;

void Door::StopAccepting() {
  impl_->StopAccepting();
}

}  // namespace dsat
