// The rendezvous and the barrier of a shared-memory group, which detect peers that end or never
// join.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/process_group.h"
#include "engine/comm/shared_file.h"

namespace dsat::engine {

// One rank's view. Not thread-safe. After an Error the group is broken: every rank gets an Error.
//
// Barriers are counted per rank and never reset, so that one file may serve several groups in turn
// if each ended without an error.
class Rendezvous {
 public:
  // Joins the group and returns when all `size` ranks have joined. The header is HeaderBytes() of
  // `file` from `offset` on and initially zero. Throws as Wait, and kInternal if the ranks disagree
  // about `size` or two processes join as the same rank.
  Rendezvous(const SharedFile& file, int64_t offset, int rank, int size,
             std::chrono::milliseconds timeout);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  // Leaves the group: peers that wait for this rank get an Error.
  ~Rendezvous();

  // A barrier. Throws kDeadlineExceeded naming the ranks that did not arrive in time, kUnavailable
  // naming a rank that has ended or left.
  void Wait();
  // A barrier at which all ranks compare the call that they are about to make and exchange a
  // number. Throws kInternal naming both calls if two ranks differ: a bug that would otherwise be a
  // deadlock or wrong sums.
  void Synchronize(const Call& call, double value = 0);
  // The number of rank `rank` at the last Synchronize.
  double ValueOf(int rank) const;

  // Returns when `word`, which only `peer` sets by Publish, has reached `value` (numbers wrap
  // around). `call` is for messages. Throws as Wait for this peer; a value that the peer published
  // before it ended or left counts.
  void WaitForPeer(int peer, std::atomic<uint32_t>& word, uint32_t value, const Call& call);
  // Throws as Wait if `peer` (any peer if negative) has ended or left, or if the time-out has
  // passed since `since`. `call` is for messages.
  void CheckPeers(const std::string& call, int peer, std::chrono::steady_clock::time_point since);
  // Sets a word in shared memory and wakes the ranks that wait for it. A rank that has read the
  // value also sees what was written before.
  static void Publish(std::atomic<uint32_t>& word, uint32_t value);
  // Breaks the group, so that every rank's next call throws, and throws `message`. The errors of
  // the other ranks quote the message of the rank that was the first.
  [[noreturn]] void Fail(ErrorCode code, const std::string& message);

  // Bytes of the header in the file; a multiple of the page size.
  static int64_t HeaderBytes();

 private:
  struct Slot;
  struct Header;

  Slot& SlotOf(int rank) const;
  void Announce();
  void CheckNotBroken(const Call& call);
  void CheckNotBroken(const std::string& call);
  // The message of the rank that was the first to break the group; "" if none has.
  std::string CauseOfFailure() const;
  // Spins, then sleeps until `word` has reached `value`. Fails if `peer` (any one if that is
  // kAllPeers) has ended or left before.
  void WaitFor(std::atomic<uint32_t>& word, uint32_t value, int peer, const Call& call);
  void CheckAwaited(const std::function<bool(int rank)>& is_awaited, const std::string& call);
  // Whether `rank` is `peer`, or any other rank if that is kAllPeers.
  bool IsPeer(int rank, int peer) const;
  bool HasEnded(int rank);
  std::string Describe(int rank) const;
  const Call& CurrentCall() const;

  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  int num_spins_;
  Mapping mapping_;
  Header* header_;
  uint32_t num_waits_ = 0;         // Number of the last barrier that this rank has reached. Wraps.
  uint32_t last_call_ = 0;         // Number of the barrier of the last Synchronize.
  uint32_t incarnation_ = 0;       // The number of this group among those over this file, from 1.
  std::vector<UniqueFd> pid_fds_;  // By rank; opened by the first long wait.
};

}  // namespace dsat::engine
