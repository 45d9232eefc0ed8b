// The rendezvous of ranks on several hosts at rank 0, whose address all of them know.
#include "engine/comm/tcp_rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "engine/comm/acceptor.h"
#include "engine/comm/link.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How often rank 0 checks that the ranks that have joined are still connected.
constexpr milliseconds kWatchPeriod{50};
// The time-out of an attempt to connect, and the pause between two attempts.
constexpr std::chrono::seconds kAttempt{5};
constexpr milliseconds kPause{20};
// How much longer a rank waits for rank 0's answer than rank 0 waits for all ranks: the answer
// names the missing ranks.
constexpr std::chrono::seconds kGrace{1};

constexpr int32_t kMaxErrorBytes = 1 << 20;

// Rank 0's answer to a hello: an error and its text, or the token and the Member of every rank.
struct AnswerHead {
  std::array<char, 8> magic = Hello::kMagic;
  int32_t error = 0;  // An ErrorCode; 0 = no error.
  int32_t bytes = 0;  // The number of bytes that follow.
  uint64_t token = 0;
};
static_assert(std::is_trivially_copyable_v<Member> && std::is_trivially_copyable_v<Hello>);

// A hash of the key is sent instead of the key, which may be used elsewhere.
uint64_t TokenOf(const std::string& key) {
  return StableHash("dsat process group " + key);
}

uint64_t DrawToken() {
  uint64_t token = 0;
  if (getrandom(&token, sizeof token, 0) != sizeof token) ThrowErrno("getrandom", errno);
  return token;
}

std::string JoinOf(int rank) {
  return fmt::format("rank {} in join: ", rank);
}

// Sends and receives everything queued on `link`; false if this is not done by the deadline.
bool MoveAll(Link& link, Clock::time_point deadline) {
  Link* const links[] = {&link};
  size_t lost = 0;
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return MoveUntil(
             links, [&] { return !link.is_busy(); }, left, &lost) == Moved::kAll;
}

// Sends an answer, and waits for the reader at most kAttempt.
void Answer(Link& link, const AnswerHead& head, const void* body) {
  link.Send(&head, sizeof head);
  link.Send(body, head.bytes);
  MoveAll(link, Clock::now() + kAttempt);
}

void Refuse(Link& link, ErrorCode code, const std::string& why) {
  Answer(link, {.error = static_cast<int32_t>(code), .bytes = static_cast<int32_t>(why.size())},
         why.data());
}

// The address to listen at on a host whose address is `own`, for peers that use `master`, the
// address of `name`: `own`, unless `name` may have another address on other hosts, such as a host's
// own name, which is 127.0.1.1 in Debian's /etc/hosts; then all addresses.
SocketAddress ListeningAddress(const std::string& name, const SocketAddress& master,
                               const SocketAddress& own) {
  const bool is_misleading = master.is_loopback() && name != master.Host() && name != "localhost";
  return is_misleading ? own.Wildcard() : own;
}

bool IsOfThisHost(const SocketAddress& address) {
  const UniqueFd fd(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any_port = address.WithPort(0);
  return fd && bind(fd.get(), any_port.get(), any_port.bytes()) == 0;
}

UniqueFd ListenAsMaster(const TcpGroupArgs& args) {
  if (args.listening_fd >= 0) {
    UniqueFd fd(fcntl(args.listening_fd, F_DUPFD_CLOEXEC, 0));
    if (!fd || fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) {
      ThrowErrno(fmt::format("the process group's listening socket (fd {})", args.listening_fd),
                 errno);
    }
    return fd;
  }
  const std::vector<SocketAddress> addresses = Resolve(args.master_address, args.master_port);
  const auto own = std::find_if(addresses.begin(), addresses.end(), IsOfThisHost);
  // With network address translation, no interface has the address that the others use.
  return ListenAt(own == addresses.end() ? addresses.front().Wildcard()
                                         : ListeningAddress(args.master_address, *own, *own));
}

// Rank 0.
class Server {
 public:
  explicit Server(const TcpGroupArgs& args)
      : args_(args),
        master_(ListenAsMaster(args)),
        clients_(static_cast<size_t>(args.size)),
        num_missing_(args.size - 1) {
    result_.listener = ListenAt(SocketAddress::OfThisSide(master_.get()).WithPort(0));
    result_.membership = {.members = std::vector<Member>(clients_.size()), .token = DrawToken()};
    result_.membership.members[0] = {SocketAddress::OfThisSide(result_.listener.get()), getpid()};
  }

  RendezvousResult Serve(Clock::time_point deadline) {
    try {
      Acceptor acceptor(std::move(master_));
      while (num_missing_ > 0) {
        if (auto arrival = acceptor.Next(std::min(deadline, Clock::now() + kWatchPeriod))) {
          Admit(std::move(*arrival));
          continue;
        }
        CheckClients();
        if (Clock::now() < deadline) continue;
        Throw(ErrorCode::kDeadlineExceeded, "{}{} did not arrive within {} ms", JoinOf(0),
              Missing(), args_.timeout.count());
      }
    } catch (const Error& error) {
      for (Link& client : clients_) {
        if (client.fd() >= 0) Refuse(client, error.code(), error.what());
      }
      throw;
    }
    // The listener is closed, so that a rank that joins the next group early waits for its
    // listener.
    const std::vector<Member>& members = result_.membership.members;
    for (int rank = 1; rank < args_.size; ++rank) {
      Answer(clients_[static_cast<size_t>(rank)],
             {.bytes = static_cast<int32_t>(members.size() * sizeof(Member)),
              .token = result_.membership.token},
             members.data());
    }
    return std::move(result_);
  }

 private:
  void Admit(Acceptor::Arrival arrival) {
    const Hello& hello = arrival.hello;
    Link link = std::move(arrival.link);
    if (hello.purpose != Hello::Purpose::kJoin) return;
    if (hello.token != TokenOf(args_.key)) {
      return Refuse(link, ErrorCode::kUnauthenticated,
                    fmt::format("rank {} joined the process group with a wrong key", hello.rank));
    }
    if (hello.size != args_.size) {
      return Refuse(link, ErrorCode::kInternal,
                    fmt::format("rank {} joined a group of {} ranks, others a group of {}",
                                hello.rank, hello.size, args_.size));
    }
    if (hello.rank < 0 || hello.rank >= args_.size) {
      return Refuse(link, ErrorCode::kInternal,
                    fmt::format("rank {} is not in a group of {} ranks", hello.rank, args_.size));
    }
    const auto index = static_cast<size_t>(hello.rank);
    Member& member = result_.membership.members[index];
    if (member.pid != 0) {
      return Refuse(link, ErrorCode::kInternal,
                    fmt::format("rank {} has already joined the group, as {}", hello.rank,
                                result_.membership.Describe(hello.rank)));
    }
    Tune(link.fd());
    member = {SocketAddress::OfOtherSide(link.fd()).WithPort(hello.port), hello.pid};
    clients_[index] = std::move(link);
    --num_missing_;
  }

  // Throws if a rank that had joined has closed its connection.
  void CheckClients() const {
    for (int rank = 1; rank < args_.size; ++rank) {
      pollfd poll_fd{clients_[static_cast<size_t>(rank)].fd(), POLLRDHUP, 0};
      if (poll_fd.fd < 0 || poll(&poll_fd, 1, 0) != 1) continue;
      Throw(ErrorCode::kUnavailable, "{}{} has ended before {} joined", JoinOf(0),
            result_.membership.Describe(rank), Missing());
    }
  }

  std::string Missing() const {
    std::string missing;
    for (int rank = 1; rank < args_.size; ++rank) {
      if (clients_[static_cast<size_t>(rank)].fd() >= 0) continue;
      missing += fmt::format("{}rank {} (not joined)", missing.empty() ? "" : ", ", rank);
    }
    return missing;
  }

  const TcpGroupArgs& args_;
  UniqueFd master_;
  RendezvousResult result_;
  std::vector<Link> clients_;  // By rank; empty until the rank has joined.
  int num_missing_;
};

// A rank other than 0.
class Client {
 public:
  Client(const TcpGroupArgs& args, Clock::time_point deadline) : args_(args), deadline_(deadline) {}

  RendezvousResult Join() {
    for (;;) {
      for (const SocketAddress& master : ResolveMaster()) {
        if (auto result = Attempt(master)) return std::move(*result);
      }
      if (Clock::now() + kPause >= deadline_) break;
      std::this_thread::sleep_for(kPause);
    }
    Throw(ErrorCode::kDeadlineExceeded, "{}rank 0 did not arrive within {} ms ({})",
          JoinOf(args_.rank), args_.timeout.count(), problem_);
  }

 private:
  std::vector<SocketAddress> ResolveMaster() {
    try {
      return Resolve(args_.master_address, args_.master_port);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      problem_ = error.what();
      return {};
    }
  }

  // Returns nullopt and sets problem_ if another attempt may succeed.
  std::optional<RendezvousResult> Attempt(const SocketAddress& master) {
    UniqueFd fd = ConnectTo(master, std::min(deadline_, Clock::now() + kAttempt));
    if (!fd) {
      problem_ = fmt::format("{}: {}", master.ToString(), std::strerror(errno));
      return std::nullopt;
    }
    Tune(fd.get());
    const SocketAddress own = SocketAddress::OfThisSide(fd.get());
    UniqueFd listener = ListenAt(ListeningAddress(args_.master_address, master, own).WithPort(0));
    Link link(std::move(fd));
    auto result = Ask(link, SocketAddress::OfThisSide(listener.get()).port());
    if (!result) {
      problem_ = fmt::format("{}: connected, but there was no answer", master.ToString());
      return std::nullopt;
    }
    Correct(result->membership.members, master);
    result->listener = std::move(listener);
    return result;
  }

  std::optional<RendezvousResult> Ask(Link& link, int port) {
    const Hello hello = {.token = TokenOf(args_.key),
                         .size = args_.size,
                         .rank = args_.rank,
                         .pid = getpid(),
                         .port = port};
    AnswerHead head;
    link.Send(&hello, sizeof hello);
    link.Receive(&head, sizeof head);
    const bool has_answer = MoveAll(link, deadline_ + kGrace) && head.magic == Hello::kMagic;
    return has_answer ? ReadAnswer(link, head) : std::nullopt;
  }

  std::optional<RendezvousResult> ReadAnswer(Link& link, const AnswerHead& head) const {
    const auto members_bytes = static_cast<int32_t>(sizeof(Member)) * args_.size;
    if (head.bytes < 0 || head.bytes > std::max(members_bytes, kMaxErrorBytes)) return std::nullopt;
    std::vector<char> body(static_cast<size_t>(head.bytes));
    link.Receive(body.data(), head.bytes);
    if (!MoveAll(link, Clock::now() + kAttempt)) return std::nullopt;
    if (head.error != 0) {
      throw Error(static_cast<ErrorCode>(head.error), std::string(body.begin(), body.end()));
    }
    if (head.bytes != members_bytes) return std::nullopt;
    Membership membership = {.rank = args_.rank,
                             .members = std::vector<Member>(static_cast<size_t>(args_.size)),
                             .token = head.token};
    std::memcpy(membership.members.data(), body.data(), body.size());
    return RendezvousResult{std::move(membership), UniqueFd()};
  }

  // Corrects the addresses that rank 0 has seen: rank 0 does not know by which address it is
  // reached, and a loopback address is valid on rank 0's host only.
  void Correct(std::vector<Member>& members, const SocketAddress& master) const {
    for (size_t rank = 0; rank < members.size(); ++rank) {
      SocketAddress& address = members[rank].address;
      const bool is_with_rank_0 = rank == 0 || (address.is_loopback() && !master.is_loopback());
      if (is_with_rank_0) address = address.OnHostOf(master);
    }
  }

  const TcpGroupArgs& args_;
  Clock::time_point deadline_;
  std::string problem_;  // Why the last attempt failed.
};

}  // namespace

std::string Membership::Describe(int rank) const {
  const auto& [address, pid] = members[static_cast<size_t>(rank)];
  return fmt::format("rank {} ({}, pid {})", rank, address.Host(), pid);
}

RendezvousResult JoinAtMaster(const TcpGroupArgs& args, Clock::time_point deadline) {
  return args.rank == 0 ? Server(args).Serve(deadline) : Client(args, deadline).Join();
}

}  // namespace dsat::engine
