// A counting barrier on one futex word in shared memory. A slot per rank holds the number of its
// last barrier, so that an error can name the missing ranks.
#include "engine/comm/rendezvous.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <string_view>

#include "base/error.h"
#include "base/num_cores.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How often a waiting rank checks that its peers are alive.
constexpr milliseconds kWatchPeriod{50};
// Some microseconds: enough for two running ranks, and too short to keep a core from a peer.
constexpr int kNumSpins = 200;
// Bytes of a message for other ranks; a longer one is cut.
constexpr size_t kCauseBytes = 320;

static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Not FUTEX_PRIVATE, because several processes map the word.
void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, milliseconds limit) {
  const timespec relative{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &relative, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void RelaxCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// True if a, a number that wraps around, has reached b.
bool AtLeast(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b) >= 0;
}

}  // namespace

// Zero pages are a valid initial state of both.
struct alignas(64) Rendezvous::Slot {
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> joined;   // The last incarnation that the rank has joined.
  std::atomic<uint32_t> left;     // The last incarnation that the rank has left.
  std::atomic<uint32_t> arrived;  // Number of the last barrier that the rank has reached.
  // Written before barrier n, in half n % 2, and read after it: a fast rank can be at barrier n + 1
  // while a slow one still reads, but not at n + 2.
  std::array<Call, 2> calls;
  std::array<double, 2> values;
  std::array<char, kCauseBytes> cause;  // Why the rank has broken the group; ends with a 0.
};

struct Rendezvous::Header {
  std::atomic<int32_t> size;
  // 1 + the rank that was the first to break the group, whose `cause` has been written; 0 if none.
  std::atomic<int32_t> broken;
  alignas(64) std::atomic<uint32_t> arrivals;   // Counts all ranks at all barriers.
  alignas(64) std::atomic<uint32_t> completed;  // Number of the last barrier that all have reached.
  std::array<Slot, kMaxShmRanks> slots;
};

int64_t Rendezvous::HeaderBytes() {
  return RoundUpToPage(sizeof(Header));
}

Rendezvous::Rendezvous(const SharedFile& file, int64_t offset, int rank, int size,
                       milliseconds timeout)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      num_spins_(size <= NumCores() ? kNumSpins : 0),
      mapping_(file.Map(offset, HeaderBytes())),
      header_(reinterpret_cast<Header*>(mapping_.data())),
      pid_fds_(static_cast<size_t>(size)) {
  DSAT_CHECK(rank >= 0 && rank < size && size <= kMaxShmRanks, "rank {} of {}", rank, size);
  Announce();
  Synchronize({.kind = Call::Kind::kJoin, .count = size});
}

Rendezvous::~Rendezvous() {
  SlotOf(rank_).left.store(incarnation_);
}

void Rendezvous::Announce() {
  int32_t known_size = 0;
  if (!header_->size.compare_exchange_strong(known_size, size_) && known_size != size_) {
    Throw(ErrorCode::kInternal, "rank {} joined a group of {} ranks, others a group of {}", rank_,
          size_, known_size);
  }
  if (const std::string cause = CauseOfFailure(); !cause.empty()) {
    Throw(ErrorCode::kUnavailable, "rank {} joined a process group that has failed: {}", rank_,
          cause);
  }
  Slot& slot = SlotOf(rank_);
  uint32_t last = slot.left.load();
  incarnation_ = last + 1;
  if (!slot.joined.compare_exchange_strong(last, incarnation_)) {
    Throw(ErrorCode::kInternal, "rank {} has already joined the group, as pid {}", rank_,
          slot.pid.load());
  }
  slot.pid.store(getpid());
  num_waits_ = slot.arrived.load();
}

void Rendezvous::Synchronize(const Call& call, double value) {
  last_call_ = num_waits_ + 1;
  Slot& mine = SlotOf(rank_);
  mine.calls[last_call_ % 2] = call;
  mine.values[last_call_ % 2] = value;
  Wait();
  const Call& first = SlotOf(0).calls[last_call_ % 2];
  for (int rank = 1; rank < size_; ++rank) {
    const Call& other = SlotOf(rank).calls[last_call_ % 2];
    if (other == first) continue;
    Fail(ErrorCode::kInternal, DifferentCalls(0, first, rank, other));
  }
}

double Rendezvous::ValueOf(int rank) const {
  return SlotOf(rank).values[last_call_ % 2];
}

void Rendezvous::Wait() {
  CheckNotBroken(CurrentCall());
  ++num_waits_;
  // The slot is set before the sum, so that all slots are set when the barrier is complete.
  SlotOf(rank_).arrived.store(num_waits_);
  if (header_->arrivals.fetch_add(1) + 1 == num_waits_ * static_cast<uint32_t>(size_)) {
    Publish(header_->completed, num_waits_);
    return;
  }
  WaitFor(header_->completed, num_waits_, ProcessGroup::kAllPeers, CurrentCall());
}

void Rendezvous::WaitForPeer(int peer, std::atomic<uint32_t>& word, uint32_t value,
                             const Call& call) {
  CheckNotBroken(call);
  WaitFor(word, value, peer, call);
}

void Rendezvous::Publish(std::atomic<uint32_t>& word, uint32_t value) {
  word.store(value);
  FutexWakeAll(word);
}

void Rendezvous::CheckNotBroken(const Call& call) {
  if (header_->broken.load() != 0) CheckNotBroken(call.ToString());
}

void Rendezvous::CheckNotBroken(const std::string& call) {
  const std::string cause = CauseOfFailure();
  if (cause.empty()) return;
  constexpr std::string_view kFormat = "rank {} in {}: the process group has failed before: {}";
  Fail(ErrorCode::kUnavailable, fmt::format(kFormat, rank_, call, cause));
}

std::string Rendezvous::CauseOfFailure() const {
  const int32_t broken = header_->broken.load();
  return broken == 0 ? "" : SlotOf(broken - 1).cause.data();
}

void Rendezvous::WaitFor(std::atomic<uint32_t>& word, uint32_t value, int peer, const Call& call) {
  for (int spin = 0; spin < num_spins_; ++spin) {
    if (AtLeast(word.load(), value)) return;
    RelaxCpu();
  }
  // Also a rank that has arrived may still have to count this, or to set the word.
  const auto is_awaited = [&](int rank) {
    return IsPeer(rank, peer) && !AtLeast(word.load(), value);
  };
  const auto deadline = Clock::now() + timeout_;
  for (;;) {
    const uint32_t seen = word.load();
    if (AtLeast(seen, value)) return;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) break;
    FutexWait(word, seen, std::min(left, kWatchPeriod));
    if (!AtLeast(word.load(), value)) CheckAwaited(is_awaited, call.ToString());
  }
  std::string missing;
  for (int rank = 0; rank < size_; ++rank) {
    const bool is_here = AtLeast(SlotOf(rank).arrived.load(), num_waits_);
    if (is_awaited(rank) && (peer == rank || !is_here))
      missing += (missing.empty() ? "" : ", ") + Describe(rank);
  }
  if (missing.empty()) missing = "another rank";  // It was stopped while it arrived.
  Fail(ErrorCode::kDeadlineExceeded,
       fmt::format("rank {} in {}: {} did not arrive within {} ms", rank_, call.ToString(), missing,
                   timeout_.count()));
}

void Rendezvous::CheckPeers(const std::string& call, int peer, Clock::time_point since) {
  CheckAwaited([&](int rank) { return IsPeer(rank, peer); }, call);
  if (Clock::now() - since < timeout_) return;
  Fail(ErrorCode::kDeadlineExceeded,
       fmt::format("rank {} in {}: not done within {} ms", rank_, call, timeout_.count()));
}

void Rendezvous::CheckAwaited(const std::function<bool(int rank)>& is_awaited,
                              const std::string& call) {
  for (int rank = 0; rank < size_; ++rank) {
    if (!is_awaited(rank)) continue;
    const bool ended = HasEnded(rank);
    const bool left = AtLeast(SlotOf(rank).left.load(), incarnation_);
    if (!ended && !left) continue;
    // It may have arrived and left without an error between the two checks.
    if (!is_awaited(rank)) continue;
    CheckNotBroken(call);  // A failure of the group makes a rank leave or end, too.
    Fail(ErrorCode::kUnavailable, fmt::format("rank {} in {}: {} has {}", rank_, call,
                                              Describe(rank), ended ? "ended" : "left the group"));
  }
}

bool Rendezvous::IsPeer(int rank, int peer) const {
  return peer == ProcessGroup::kAllPeers ? rank != rank_ : rank == peer;
}

bool Rendezvous::HasEnded(int rank) {
  const pid_t pid = SlotOf(rank).pid.load();
  if (pid == 0 || pid == getpid()) return false;  // Not joined, or a thread of this process.
  UniqueFd& pid_fd = pid_fds_[static_cast<size_t>(rank)];
  if (!pid_fd) pid_fd = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pid_fd) {
    if (errno == ESRCH) return true;
    Fail(ErrorCode::kUnavailable,
         fmt::format("watching {}: {}", Describe(rank), std::strerror(errno)));
  }
  // Readable as soon as the process is a zombie; a signal to it would still succeed then.
  pollfd poll_fd{pid_fd.get(), POLLIN, 0};
  return poll(&poll_fd, 1, 0) == 1;
}

Rendezvous::Slot& Rendezvous::SlotOf(int rank) const {
  return header_->slots[static_cast<size_t>(rank)];
}

std::string Rendezvous::Describe(int rank) const {
  const Slot& slot = SlotOf(rank);
  if (!AtLeast(slot.joined.load(), incarnation_)) return fmt::format("rank {} (not joined)", rank);
  return fmt::format("rank {} (pid {})", rank, slot.pid.load());
}

const Call& Rendezvous::CurrentCall() const {
  return SlotOf(rank_).calls[last_call_ % 2];
}

void Rendezvous::Fail(ErrorCode code, const std::string& message) {
  Slot& mine = SlotOf(rank_);
  if (header_->broken.load() == 0) {
    mine.cause[message.copy(mine.cause.data(), kCauseBytes - 1)] = 0;
    int32_t none = 0;
    header_->broken.compare_exchange_strong(none, rank_ + 1);
  }
  mine.left.store(incarnation_);
  throw Error(code, message);
}

}  // namespace dsat::engine
