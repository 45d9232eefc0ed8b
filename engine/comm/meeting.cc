// How ranks on several hosts find each other: at rank 0, whose address all of them know.
#include "engine/comm/meeting.h"

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
#include "engine/comm/link.h"
#include "engine/comm/reception.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How often rank 0 looks whether those that have come are still there.
constexpr milliseconds kWatchPeriod{50};
// For one attempt to connect, and between two.
constexpr std::chrono::seconds kAttempt{5};
constexpr milliseconds kPause{20};
// By so much a rank that waits for rank 0's answer outlasts it: rank 0 knows who is missing.
constexpr std::chrono::seconds kGrace{1};

constexpr int32_t kMaxErrorBytes = 1 << 20;

// Rank 0's answer to a hello: an error and its text, or the proof and everybody's Member.
struct AnswerHead {
  std::array<char, 8> magic = Hello::kMagic;
  int32_t error = 0;  // An ErrorCode; 0: none.
  int32_t bytes = 0;  // That follow.
  uint64_t proof = 0;
};
static_assert(std::is_trivially_copyable_v<Member> && std::is_trivially_copyable_v<Hello>);

// The key itself is not sent: it may be good for more than this meeting.
uint64_t ProofOf(const std::string& key) {
  return StableHash("dsat process group " + key);
}

uint64_t DrawProof() {
  uint64_t proof = 0;
  if (getrandom(&proof, sizeof proof, 0) != sizeof proof) ThrowErrno("getrandom", errno);
  return proof;
}

std::string JoinOf(int rank) {
  return fmt::format("rank {} in join: ", rank);
}

// Moves all of `link` by the deadline.
bool MoveAll(Link& link, Clock::time_point deadline) {
  Link* const links[] = {&link};
  size_t lost = 0;
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return MoveUntil(
             links, [&] { return !link.is_busy(); }, left, &lost) == Moved::kAll;
}

// Waits for the reader no longer than for its hello.
void Answer(Link& link, const AnswerHead& head, const void* body) {
  link.Send(&head, sizeof head);
  link.Send(body, head.bytes);
  MoveAll(link, Clock::now() + kAttempt);
}

void Refuse(Link& link, ErrorCode code, const std::string& why) {
  Answer(link, {.error = static_cast<int32_t>(code), .bytes = static_cast<int32_t>(why.size())},
         why.data());
}

// Where to listen if this host is `own` to one who uses `master`, which `name` stands for: nowhere
// else, unless the name may stand for another address on other hosts, as a host's own name is
// 127.0.1.1 in Debian's /etc/hosts.
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
  // Behind a translation of addresses no interface has the one that others know.
  return ListenAt(own == addresses.end() ? addresses.front().Wildcard()
                                         : ListeningAddress(args.master_address, *own, *own));
}

// Rank 0's side.
class Host {
 public:
  explicit Host(const TcpGroupArgs& args);
  Meeting Hold(Clock::time_point deadline);

 private:
  void Admit(Reception::Arrival arrival);
  void CheckGuests() const;
  std::string Missing() const;

  const TcpGroupArgs& args_;
  UniqueFd master_;
  Meeting meeting_;
  std::vector<Link> guests_;  // By rank, where one has come.
  int num_missing_;
};

Host::Host(const TcpGroupArgs& args)
    : args_(args),
      master_(ListenAsMaster(args)),
      guests_(static_cast<size_t>(args.size)),
      num_missing_(args.size - 1) {
  meeting_.listener = ListenAt(SocketAddress::OfThisSide(master_.get()).WithPort(0));
  meeting_.roster = {.members = std::vector<Member>(guests_.size()), .proof = DrawProof()};
  meeting_.roster.members[0] = {SocketAddress::OfThisSide(meeting_.listener.get()), getpid()};
}

Meeting Host::Hold(Clock::time_point deadline) {
  try {
    Reception reception(std::move(master_));
    while (num_missing_ > 0) {
      if (auto arrival = reception.Next(std::min(deadline, Clock::now() + kWatchPeriod))) {
        Admit(std::move(*arrival));
        continue;
      }
      CheckGuests();
      if (Clock::now() < deadline) continue;
      Throw(ErrorCode::kDeadlineExceeded, "{}{} did not come within {} ms", JoinOf(0), Missing(),
            args_.timeout.count());
    }
  } catch (const Error& error) {
    for (Link& guest : guests_) {
      if (guest.fd() >= 0) Refuse(guest, error.code(), error.what());
    }
    throw;
  }
  // The listener is closed: who is quick to meet again waits for the next one.
  const std::vector<Member>& members = meeting_.roster.members;
  for (int rank = 1; rank < args_.size; ++rank) {
    Answer(guests_[static_cast<size_t>(rank)],
           {.bytes = static_cast<int32_t>(members.size() * sizeof(Member)),
            .proof = meeting_.roster.proof},
           members.data());
  }
  return std::move(meeting_);
}

void Host::Admit(Reception::Arrival arrival) {
  const Hello& hello = arrival.hello;
  Link link(std::move(arrival.fd));
  if (hello.purpose != Hello::Purpose::kJoin) return;
  if (hello.proof != ProofOf(args_.key)) {
    return Refuse(link, ErrorCode::kUnauthenticated,
                  fmt::format("rank {} came to a process group with a wrong key", hello.rank));
  }
  if (hello.size != args_.size) {
    return Refuse(link, ErrorCode::kInternal,
                  fmt::format("rank {} came to a group of {} ranks, others to one of {}",
                              hello.rank, hello.size, args_.size));
  }
  if (hello.rank < 0 || hello.rank >= args_.size) {
    return Refuse(link, ErrorCode::kInternal,
                  fmt::format("rank {} came to a group of {} ranks", hello.rank, args_.size));
  }
  const auto index = static_cast<size_t>(hello.rank);
  Member& member = meeting_.roster.members[index];
  if (member.pid != 0) {
    return Refuse(link, ErrorCode::kInternal,
                  fmt::format("rank {} has joined the group already, as {}", hello.rank,
                              meeting_.roster.Describe(hello.rank)));
  }
  Tune(link.fd());
  member = {SocketAddress::OfOtherSide(link.fd()).WithPort(hello.port), hello.pid};
  guests_[index] = std::move(link);
  --num_missing_;
}

// Throws if one has gone again.
void Host::CheckGuests() const {
  for (int rank = 1; rank < args_.size; ++rank) {
    pollfd poll_fd{guests_[static_cast<size_t>(rank)].fd(), POLLRDHUP, 0};
    if (poll_fd.fd < 0 || poll(&poll_fd, 1, 0) != 1) continue;
    Throw(ErrorCode::kUnavailable, "{}{} has ended before {} came", JoinOf(0),
          meeting_.roster.Describe(rank), Missing());
  }
}

std::string Host::Missing() const {
  std::string missing;
  for (int rank = 1; rank < args_.size; ++rank) {
    if (guests_[static_cast<size_t>(rank)].fd() >= 0) continue;
    missing += fmt::format("{}rank {} (not joined)", missing.empty() ? "" : ", ", rank);
  }
  return missing;
}

// The other ranks' side.
class Guest {
 public:
  Guest(const TcpGroupArgs& args, Clock::time_point deadline) : args_(args), deadline_(deadline) {}
  Meeting Meet();

 private:
  std::vector<SocketAddress> ResolveMaster();
  // nullopt, and problem_, if it is worth another attempt.
  std::optional<Meeting> Attempt(const SocketAddress& master);
  std::optional<Meeting> Ask(Link& link, int port);
  std::optional<Meeting> ReadAnswer(Link& link, const AnswerHead& head) const;
  void Correct(std::vector<Member>& members, const SocketAddress& master) const;

  const TcpGroupArgs& args_;
  Clock::time_point deadline_;
  std::string problem_;  // Of the last attempt.
};

Meeting Guest::Meet() {
  for (;;) {
    for (const SocketAddress& master : ResolveMaster()) {
      if (auto meeting = Attempt(master)) return std::move(*meeting);
    }
    if (Clock::now() + kPause >= deadline_) break;
    std::this_thread::sleep_for(kPause);
  }
  Throw(ErrorCode::kDeadlineExceeded, "{}rank 0 did not come within {} ms ({})", JoinOf(args_.rank),
        args_.timeout.count(), problem_);
}

std::vector<SocketAddress> Guest::ResolveMaster() {
  try {
    return Resolve(args_.master_address, args_.master_port);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    problem_ = error.what();
    return {};
  }
}

std::optional<Meeting> Guest::Attempt(const SocketAddress& master) {
  UniqueFd fd = ConnectTo(master, std::min(deadline_, Clock::now() + kAttempt));
  if (!fd) {
    problem_ = fmt::format("{}: {}", master.ToString(), std::strerror(errno));
    return std::nullopt;
  }
  Tune(fd.get());
  const SocketAddress own = SocketAddress::OfThisSide(fd.get());
  UniqueFd listener = ListenAt(ListeningAddress(args_.master_address, master, own).WithPort(0));
  Link link(std::move(fd));
  auto meeting = Ask(link, SocketAddress::OfThisSide(listener.get()).port());
  if (!meeting) {
    problem_ = fmt::format("{}: connected, but not answered", master.ToString());
    return std::nullopt;
  }
  Correct(meeting->roster.members, master);
  meeting->listener = std::move(listener);
  return meeting;
}

std::optional<Meeting> Guest::Ask(Link& link, int port) {
  const Hello hello = {.proof = ProofOf(args_.key),
                       .size = args_.size,
                       .rank = args_.rank,
                       .pid = getpid(),
                       .port = port};
  AnswerHead head;
  link.Send(&hello, sizeof hello);
  link.Receive(&head, sizeof head);
  const bool has_come = MoveAll(link, deadline_ + kGrace) && head.magic == Hello::kMagic;
  return has_come ? ReadAnswer(link, head) : std::nullopt;
}

std::optional<Meeting> Guest::ReadAnswer(Link& link, const AnswerHead& head) const {
  const auto members_bytes = static_cast<int32_t>(sizeof(Member)) * args_.size;
  if (head.bytes < 0 || head.bytes > std::max(members_bytes, kMaxErrorBytes)) return std::nullopt;
  std::vector<char> body(static_cast<size_t>(head.bytes));
  link.Receive(body.data(), head.bytes);
  if (!MoveAll(link, Clock::now() + kAttempt)) return std::nullopt;
  if (head.error != 0) {
    throw Error(static_cast<ErrorCode>(head.error), std::string(body.begin(), body.end()));
  }
  if (head.bytes != members_bytes) return std::nullopt;
  Roster roster = {.rank = args_.rank,
                   .members = std::vector<Member>(static_cast<size_t>(args_.size)),
                   .proof = head.proof};
  std::memcpy(roster.members.data(), body.data(), body.size());
  return Meeting{std::move(roster), UniqueFd()};
}

// Rank 0 does not know by which address it is reached, and only on its own host are those that came
// to it by loopback where it saw them.
void Guest::Correct(std::vector<Member>& members, const SocketAddress& master) const {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    SocketAddress& address = members[rank].address;
    const bool is_with_rank_0 = rank == 0 || (address.is_loopback() && !master.is_loopback());
    if (is_with_rank_0) address = address.OnHostOf(master);
  }
}

}  // namespace

std::string Roster::Describe(int rank) const {
  const auto& [address, pid] = members[static_cast<size_t>(rank)];
  return fmt::format("rank {} ({}, pid {})", rank, address.Host(), pid);
}

Meeting MeetAtMaster(const TcpGroupArgs& args, Clock::time_point deadline) {
  return args.rank == 0 ? Host(args).Hold(deadline) : Guest(args, deadline).Meet();
}

}  // namespace dsat::engine
