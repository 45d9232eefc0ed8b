// The ranks of one trial and their collectives.
//
// Law of collectives: issued only by the executor, in plan order, on every rank, never under a
// condition on local data. Collectives work in place on registered buffers of P rows, so that a
// same-host transport can keep them in memory that all ranks see, and a network transport can pin
// them. All calls have a time-out; a dead or absent peer is an error within seconds.
#ifndef DSAT_ENGINE_COMM_PROCESS_GROUP_H_
#define DSAT_ENGINE_COMM_PROCESS_GROUP_H_

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/tensor.h"

namespace dsat::engine {

// Communication memory: this rank's block of P rows. Freed with the group.
struct CommBuffer {
  int id = -1;
  void* data = nullptr;  // nullptr in a counting group
  int64_t bytes = 0;
};

// Calls and bytes this rank has sent, by what a ring sends (docs/engine.md): (P - 1) / P of the
// buffer for all_gather, reduce_scatter and all_to_all, twice that for all_reduce, the row for
// broadcast (nothing on the rank before the root, where the ring ends), the message for Send and
// Exchange.
struct Traffic {
  int64_t num_collectives = 0;
  int64_t sent_bytes = 0;
  int64_t num_messages = 0;  // Sends and Exchanges.
  Traffic& operator+=(const Traffic& other) {
    num_collectives += other.num_collectives;
    sent_bytes += other.sent_bytes;
    num_messages += other.num_messages;
    return *this;
  }
  bool operator==(const Traffic&) const = default;
};

// Not thread-safe: one thread issues. Size 1 is the same interface and does nothing. Over a
// device's memory a call is work of the calling thread's stream, as kernels are
// (engine/backend/kernels.h).
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Traffic& traffic() const { return traffic_; }

  // A collective call: the same sizes in the same order on every rank. Contents are zero.
  virtual CommBuffer Allocate(int64_t bytes) = 0;

  // The buffer holds size() rows of `row_elems`. Afterwards row rank() holds the sum over the ranks
  // of their row rank(); other rows are unspecified. Sums are formed in f32, in rank order: the
  // result does not depend on timing and is the same bits as AllReduce gives.
  virtual void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) = 0;
  // Afterwards row q holds rank q's row q, for every q.
  virtual void AllGather(const CommBuffer& buffer, DType dtype, int64_t row_elems) = 0;
  // Afterwards the buffer (size() rows) holds the sum over the ranks, the same bits on every rank.
  virtual void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) = 0;

  // AllGather of rows of any content, by bytes.
  virtual void AllGather(const CommBuffer& buffer, int64_t row_bytes) = 0;
  // Afterwards row root_row of every rank holds rank root_row's; other rows are untouched. Over all
  // roots: AllGather in P calls.
  virtual void Broadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems,
                         int root_row) = 0;
  // Afterwards row q holds what was rank q's row rank(), for every q.
  virtual void AllToAll(const CommBuffer& buffer, int64_t row_bytes) = 0;

  // Point to point, between any two ranks, from and to any memory, of one kind (a device's or the
  // host's) on both sides. Messages of one rank to another arrive in order; a Recv or Exchange of
  // another size than the peer's call is kInternal, naming both.
  //
  // Recv waits for the message. Send may return before the peer receives, or only then: two ranks
  // that Send to each other before they Recv may wait for ever. Where messages cross, both ranks
  // Exchange, which sends and receives as many bytes at once. A rank inside a collective receives
  // nothing. REQUIRES: peer is another rank; `sent` and `received` do not overlap.
  virtual void Send(const void* data, int64_t bytes, int peer) = 0;
  virtual void Recv(void* data, int64_t bytes, int peer) = 0;
  virtual void Exchange(const void* sent, void* received, int64_t bytes, int peer) = 0;

  // A collective call, with the same colors everywhere: color_of_rank[r] is rank r's. Gives the
  // group of the ranks with this rank's color, in the order of their ranks here; nullptr if this
  // rank's color is negative. The group has its own buffers, traffic and broken state, the same
  // time-out and the same kind; it may outlive this one, and is issued to by the same thread or by
  // another. Ranks in its errors are its own. REQUIRES: size() colors.
  virtual std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) = 0;

  // The sum, or the maximum, of one number over the ranks (NaN if one is); also a barrier.
  virtual double SumScalar(double value) = 0;
  virtual double MaxScalar(double value) = 0;
  virtual void Barrier() = 0;

  // For who has waited for `peer`, or kAllPeers, by other means since `since`, in what errors name
  // `call`. Throws where a call of this group would go on waiting no longer: kUnavailable if the
  // peer has ended or left, kDeadlineExceeded after the time-out. Not a collective call.
  using Clock = std::chrono::steady_clock;
  static constexpr int kAllPeers = -1;
  virtual void CheckPeers(const std::string& call, int peer, Clock::time_point since) = 0;

 protected:
  ProcessGroup(int rank, int size) : rank_(rank), size_(size) {}

  // Every implementation calls one of these in every collective, Send and Exchange; scalars,
  // barriers and splits carry no model state and are not counted. `sent_rows`: by what a ring
  // sends. REQUIRES: the buffer holds size() rows.
  void CountRows(const CommBuffer& buffer, int64_t row_bytes, int64_t sent_rows);
  void CountRows(const CommBuffer& buffer, DType dtype, int64_t row_elems, int64_t sent_rows) {
    CountRows(buffer, row_elems * BytesPerElem(dtype), sent_rows);
  }
  void CountBroadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems, int root_row);
  void CountSend(int64_t bytes, int peer);
  void CheckPeer(int64_t bytes, int peer) const;

  // Of what MaxScalar compares: NaN if one is.
  static double Larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

  // Whom Split puts together with this rank.
  struct Subgroup {
    int rank = 0;   // This rank's, there.
    int size = 0;   // 0: none, for a negative color.
    int first = 0;  // The rank, here, of the subgroup's rank 0.
  };
  Subgroup SubgroupOf(std::span<const int> color_of_rank) const;

 private:
  int rank_;
  int size_;
  Traffic traffic_;
};

// Ranks on one host over a memory file that all of them have open (memfd, inherited from the
// supervisor; borrowed, empty at first). Returns when all ranks have joined. One file may serve one
// group after another if each ended without an error. Size 1 needs no file (`shared_fd` -1).
//
// Send returns when the message is copied out, whatever its size: a mailbox per ordered pair holds
// one message, in shared memory that grows to the largest sent. It waits only while the peer has
// not received the message before, so two ranks may Send to each other before they Recv.
//
// This and every call below throws
//   kDeadlineExceeded  naming the peers that did not come within `timeout`;
//   kUnavailable       within about 100 ms after a peer's process has ended (pidfd) or a peer's
//                      group object was destroyed: "rank 2 (pid 123) has ended". What it had sent
//                      before can still be received;
//   kInternal          naming both calls if two ranks issued different ones (a bug of the caller);
//   kResourceExhausted from Allocate, Split, Send and Exchange if the memory cannot be had; the
//                      group stays usable.
// After any of the others the group is broken: every further call throws.
std::unique_ptr<ProcessGroup> MakeShmGroup(int shared_fd, int rank, int size,
                                           std::chrono::milliseconds timeout);
// How the ranks of several hosts meet.
struct TcpGroupArgs {
  int rank = 0;
  int size = 1;
  std::string master_address;  // Of rank 0's host, as every rank reaches it: a number or a name.
  int master_port = 0;         // Where rank 0 listens until all have come.
  std::string key;             // The same on every rank, and secret; may be empty.
  std::chrono::milliseconds timeout{};
  // Of rank 0: a socket that listens there already (borrowed), so that who starts the ranks can let
  // the kernel choose the port; -1: none. It may serve one group after another.
  int listening_fd = -1;
};

// Ranks on several hosts, over TCP. Returns when all have joined; rank 0 may come last. The network
// must be trusted, as with NCCL or Gloo: nothing is encrypted, and a hash of the key, which keeps
// strangers and ranks of other groups out, can be read and used again by who listens in.
//
// Rank 0 listens at the master's address if that is one of its host's, else, or if the master is a
// name that is a loopback address here, at all of them; every rank, at any free port of the address
// from which it reached rank 0. All ranks must be able to connect to all.
//
// Collectives are direct: every rank sends each peer what that one needs, and nothing twice; those
// of a row from one rank send it size() - 1 times. Send returns when the network has taken the
// message, of which it holds some 100 KB to some MB: a larger one waits for the receiver.
//
// Errors are MakeShmGroup's, with addresses: "rank 2 (10.0.0.3, pid 123) has ended". Besides,
//   kDeadlineExceeded  if nothing moves for `timeout`; a host that vanished is noticed within half
//   a
//                      minute (kUnavailable) or by it;
//   kUnavailable       from rank 0 if the port is taken, from others if a rank cannot be reached;
//   kUnauthenticated   on a rank that came with another key, kInternal with another size or as a
//                      rank that has come; the others wait on;
//   kNotFound          if the master's name is of no host;
//   kResourceExhausted from Allocate if the memory cannot be had, from Split if no socket can.
std::unique_ptr<ProcessGroup> MakeTcpGroup(const TcpGroupArgs& args);

// MakeShmGroup's, for as many threads of this process, over a file of its own.
std::vector<std::unique_ptr<ProcessGroup>> MakeThreadGroups(int size,
                                                            std::chrono::milliseconds timeout);
// Moves nothing; counts what `rank` of `size` would send. Sums and maxima return their argument.
std::unique_ptr<ProcessGroup> MakeCountingGroup(int rank, int size);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_PROCESS_GROUP_H_
