// A counting barrier on one futex word in shared memory, with a slot per rank that says how far the
// rank has come: so that an error can name who is missing.
#include "engine/comm/rendezvous.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "base/error.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kMaxRanks = 256;
// How often a waiting rank looks whether its peers live.
constexpr milliseconds kWatchPeriod{50};
// Some microseconds: what two running ranks need to meet, and too short to keep a core from a peer.
constexpr int kNumSpins = 200;

static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Not FUTEX_PRIVATE: the word is mapped by several processes.
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

int NumCores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// True if a, a number that wraps around, has come to b.
bool AtLeast(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b) >= 0;
}

}  // namespace

std::string Call::ToString() const {
  const auto rows = [&](const char* name) {
    return fmt::format("{}(buffer {}, {}, rows of {})", name, buffer, Name(dtype), count);
  };
  switch (kind) {
    case Kind::kJoin:
      return "join";
    case Kind::kAllocate:
      return fmt::format("allocate({} bytes)", count);
    case Kind::kReduceScatter:
      return rows("reduce_scatter");
    case Kind::kAllGather:
      return rows("all_gather");
    case Kind::kAllReduce:
      return rows("all_reduce");
    case Kind::kSum:
      return "sum of a number";
    case Kind::kMax:
      return "maximum of a number";
    case Kind::kBarrier:
      return "barrier";
  }
  return "unknown call";
}

// Zero pages are a valid start for both.
struct alignas(64) Rendezvous::Slot {
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> joined;   // Incarnation that the rank joined last.
  std::atomic<uint32_t> left;     // Incarnation that the rank left last.
  std::atomic<uint32_t> arrived;  // Number of the barrier that the rank came to last.
  // Written before barrier n, in half n % 2, and read after it: a fast rank can be at barrier n + 1
  // while a slow one still reads, but not at n + 2.
  std::array<Call, 2> calls;
  std::array<double, 2> values;
};

struct Rendezvous::Header {
  std::atomic<int32_t> size;
  std::atomic<uint32_t> broken;
  alignas(64) std::atomic<uint32_t> arrivals;   // Of all ranks at all barriers.
  alignas(64) std::atomic<uint32_t> completed;  // Number of the last barrier that all came to.
  std::array<Slot, kMaxRanks> slots;
};

int64_t Rendezvous::HeaderBytes() {
  return RoundUpToPage(sizeof(Header));
}

Rendezvous::Rendezvous(int fd, int rank, int size, milliseconds timeout)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      num_spins_(size <= NumCores() ? kNumSpins : 0),
      pid_fds_(static_cast<size_t>(size)) {
  DSAT_CHECK(rank >= 0 && rank < size && size <= kMaxRanks, "rank {} of {}", rank, size);
  // Grows the file, never shrinks it: every rank does so, in any order.
  if (fallocate(fd, 0, 0, HeaderBytes()) != 0) ThrowErrno("the process group's memory file", errno);
  mapping_ = Mapping(fd, 0, HeaderBytes());
  header_ = reinterpret_cast<Header*>(mapping_.data());
  Announce();
  Meet({.kind = Call::Kind::kJoin, .count = size});
}

Rendezvous::~Rendezvous() {
  SlotOf(rank_).left.store(incarnation_);
}

void Rendezvous::Announce() {
  int32_t known_size = 0;
  if (!header_->size.compare_exchange_strong(known_size, size_) && known_size != size_) {
    Throw(ErrorCode::kInternal, "rank {} came to a group of {} ranks, others to one of {}", rank_,
          size_, known_size);
  }
  if (header_->broken.load() != 0) {
    Throw(ErrorCode::kUnavailable, "rank {} came to a process group that had failed", rank_);
  }
  Slot& slot = SlotOf(rank_);
  uint32_t last = slot.left.load();
  incarnation_ = last + 1;
  if (!slot.joined.compare_exchange_strong(last, incarnation_)) {
    Throw(ErrorCode::kInternal, "rank {} has joined the group already, as pid {}", rank_,
          slot.pid.load());
  }
  slot.pid.store(getpid());
  num_waits_ = slot.arrived.load();
}

void Rendezvous::Meet(const Call& call, double value) {
  last_meeting_ = num_waits_ + 1;
  Slot& mine = SlotOf(rank_);
  mine.calls[last_meeting_ % 2] = call;
  mine.values[last_meeting_ % 2] = value;
  Wait();
  const Call& first = SlotOf(0).calls[last_meeting_ % 2];
  for (int rank = 1; rank < size_; ++rank) {
    const Call& other = SlotOf(rank).calls[last_meeting_ % 2];
    if (other == first) continue;
    Fail(ErrorCode::kInternal, fmt::format("ranks issued different calls: rank 0 {}, rank {} {}",
                                           first.ToString(), rank, other.ToString()));
  }
}

double Rendezvous::ValueOf(int rank) const {
  return SlotOf(rank).values[last_meeting_ % 2];
}

void Rendezvous::Wait() {
  if (header_->broken.load() != 0) {
    Fail(ErrorCode::kUnavailable,
         fmt::format("rank {} in {}: the process group has failed before", rank_, CurrentCall()));
  }
  ++num_waits_;
  // First the slot, then the sum: when the barrier is complete, every slot says so.
  SlotOf(rank_).arrived.store(num_waits_);
  if (header_->arrivals.fetch_add(1) + 1 == num_waits_ * static_cast<uint32_t>(size_)) {
    header_->completed.store(num_waits_);
    FutexWakeAll(header_->completed);
    return;
  }
  for (int spin = 0; spin < num_spins_; ++spin) {
    if (IsComplete()) return;
    RelaxCpu();
  }
  SleepUntilComplete();
}

void Rendezvous::SleepUntilComplete() {
  const auto deadline = Clock::now() + timeout_;
  for (;;) {
    const uint32_t completed = header_->completed.load();
    if (AtLeast(completed, num_waits_)) return;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) break;
    FutexWait(header_->completed, completed, std::min(left, kWatchPeriod));
    if (!IsComplete()) CheckPeers();
  }
  std::string missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!IsHere(rank)) missing += (missing.empty() ? "" : ", ") + Describe(rank);
  }
  Fail(ErrorCode::kDeadlineExceeded, fmt::format("rank {} in {}: {} did not come within {} ms",
                                                 rank_, CurrentCall(), missing, timeout_.count()));
}

void Rendezvous::CheckPeers() {
  for (int rank = 0; rank < size_; ++rank) {
    if (IsHere(rank)) continue;
    const bool ended = HasEnded(rank);
    if (!ended && !HasLeft(rank)) continue;
    // It may have come, and gone in good order, between the two looks.
    if (IsHere(rank)) continue;
    Fail(ErrorCode::kUnavailable, fmt::format("rank {} in {}: {} has {}", rank_, CurrentCall(),
                                              Describe(rank), ended ? "ended" : "left the group"));
  }
}

bool Rendezvous::HasEnded(int rank) {
  const pid_t pid = SlotOf(rank).pid.load();
  if (pid == 0 || pid == getpid()) return false;  // Never came; or a thread of this process.
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

bool Rendezvous::HasLeft(int rank) const {
  return AtLeast(SlotOf(rank).left.load(), incarnation_);
}

bool Rendezvous::IsHere(int rank) const {
  return AtLeast(SlotOf(rank).arrived.load(), num_waits_);
}

bool Rendezvous::IsComplete() const {
  return AtLeast(header_->completed.load(), num_waits_);
}

Rendezvous::Slot& Rendezvous::SlotOf(int rank) const {
  return header_->slots[static_cast<size_t>(rank)];
}

std::string Rendezvous::Describe(int rank) const {
  const Slot& slot = SlotOf(rank);
  if (!AtLeast(slot.joined.load(), incarnation_)) return fmt::format("rank {} (not joined)", rank);
  return fmt::format("rank {} (pid {})", rank, slot.pid.load());
}

std::string Rendezvous::CurrentCall() const {
  return SlotOf(rank_).calls[last_meeting_ % 2].ToString();
}

void Rendezvous::Fail(ErrorCode code, const std::string& message) {
  header_->broken.store(1);
  SlotOf(rank_).left.store(incarnation_);
  throw Error(code, message);
}

}  // namespace dsat::engine
