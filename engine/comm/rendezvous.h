// Where the ranks of a shared-memory group meet: a header, a futex barrier, and the watch over
// peers that died or never came.
#ifndef DSAT_ENGINE_COMM_RENDEZVOUS_H_
#define DSAT_ENGINE_COMM_RENDEZVOUS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/call.h"
#include "engine/comm/mapping.h"
#include "engine/comm/shared_file.h"

namespace dsat::engine {

// One rank's end. Not thread-safe. After an Error the group is broken: every rank gets an Error.
//
// Barriers are counted per rank, never reset, so one file may serve one group after another, as
// long as each ended in good order.
class Rendezvous {
 public:
  // Joins: returns when all `size` ranks are here. The header is HeaderBytes() of `file` from
  // `offset` on, zeroed at first. Throws as Wait, or kInternal if the ranks disagree about `size`
  // or two came as the same rank.
  Rendezvous(const SharedFile& file, int64_t offset, int rank, int size,
             std::chrono::milliseconds timeout);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  // Leaves: peers that still wait for this rank get an Error.
  ~Rendezvous();

  // Returns when every rank has called it as often as this one. Throws kDeadlineExceeded naming the
  // ranks that did not come in time, kUnavailable naming a rank that ended or left.
  void Wait();
  // Wait, at which all ranks show what they are about to do and a number. Throws kInternal naming
  // both calls if two ranks differ: a bug that would otherwise be a hang or wrong sums.
  void Meet(const Call& call, double value = 0);
  // What rank `rank` showed at the last Meet.
  double ValueOf(int rank) const;

  // Returns when `word`, which only `peer` sets and only with Publish, has come to `value` (numbers
  // that wrap around). `call` is for messages. Throws as Wait, about this peer; what a peer has
  // published before it ended or left still counts.
  void WaitForPeer(int peer, std::atomic<uint32_t>& word, uint32_t value, const Call& call);
  // Throws as Wait does if `peer` (negative: any) has ended or left, or if the time-out has passed
  // since `since`; `call` is for messages.
  void CheckPeers(const std::string& call, int peer, std::chrono::steady_clock::time_point since);
  // Sets a word in shared memory and wakes who waits for it. What was written before can be read by
  // who has seen the value.
  static void Publish(std::atomic<uint32_t>& word, uint32_t value);
  // Breaks the group: every rank's next call throws. Throws `message` itself.
  [[noreturn]] void Fail(ErrorCode code, const std::string& message);

  // Bytes of the file that belong to the rendezvous; a multiple of the page size.
  static int64_t HeaderBytes();

 private:
  struct Slot;
  struct Header;

  Slot& SlotOf(int rank) const;
  bool IsHere(int rank) const;
  void Announce();
  void CheckNotBroken(const Call& call);
  // Spins, then sleeps until `word` has come to `value`, watching over the ranks that `is_awaited`.
  void WaitFor(std::atomic<uint32_t>& word, uint32_t value,
               const std::function<bool(int rank)>& is_awaited, const Call& call);
  void CheckAwaited(const std::function<bool(int rank)>& is_awaited, const std::string& call);
  bool HasEnded(int rank);
  bool HasLeft(int rank) const;
  std::string Describe(int rank) const;
  const Call& CurrentCall() const;

  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  int num_spins_;
  Mapping mapping_;
  Header* header_;
  uint32_t num_waits_ = 0;     // Number of the barrier that this rank came to last. Wraps around.
  uint32_t last_meeting_ = 0;  // Number of the barrier of the last Meet.
  uint32_t incarnation_ = 0;   // Which group over this file this is, from 1.
  std::vector<UniqueFd> pid_fds_;  // By rank; empty until a long wait needs it.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_RENDEZVOUS_H_
