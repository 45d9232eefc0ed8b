// Where the ranks of a shared-memory group meet: a header page, a futex barrier, and the watch over
// peers that died or never came.
#ifndef DSAT_ENGINE_COMM_RENDEZVOUS_H_
#define DSAT_ENGINE_COMM_RENDEZVOUS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/comm/mapping.h"
#include "base/unique_fd.h"
#include "engine/tensor.h"

namespace dsat::engine {

// What a rank is about to do. All ranks must come with the same call.
struct Call {
  enum class Kind : int32_t {
    kJoin,
    kAllocate,
    kReduceScatter,
    kAllGather,
    kAllReduce,
    kSum,
    kMax,
    kBarrier,
  };
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kF32;
  int32_t buffer = -1;
  int64_t count = 0;  // Ranks of kJoin, bytes of kAllocate, elements of a row of the collectives.
  bool operator==(const Call&) const = default;
  // "reduce_scatter(buffer 3, bf16, rows of 1024)".
  std::string ToString() const;
};

// One rank's end. Not thread-safe. After an Error the group is broken: every rank gets an Error.
//
// Barriers are counted per rank, never reset, so one file may serve one group after another, as
// long as each ended in good order.
class Rendezvous {
 public:
  // Joins: returns when all `size` ranks are here. `fd` is borrowed. Throws as Wait, or kInternal
  // if the ranks disagree about `size` or two came as the same rank.
  Rendezvous(int fd, int rank, int size, std::chrono::milliseconds timeout);
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

  // Bytes of the file that belong to the rendezvous; a multiple of the page size.
  static int64_t HeaderBytes();

 private:
  struct Slot;
  struct Header;

  Slot& SlotOf(int rank) const;
  bool IsHere(int rank) const;
  bool IsComplete() const;
  void Announce();
  void SleepUntilComplete();
  void CheckPeers();
  bool HasEnded(int rank);
  bool HasLeft(int rank) const;
  std::string Describe(int rank) const;
  std::string CurrentCall() const;
  [[noreturn]] void Fail(ErrorCode code, const std::string& message);

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
