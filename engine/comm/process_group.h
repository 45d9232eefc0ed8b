// The ranks of one trial and their collectives.
//
// During a step, collectives are issued only by the executor, in plan order, on every rank, never
// under a condition on local data. They work in place on registered buffers of P rows, so that a
// same-host transport can keep them in shared memory and a network transport can pin them. All
// calls have a time-out; a peer that has ended or does not answer is an error within seconds.
#pragma once

#include <chrono>
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

  char* Row(int row, int64_t row_bytes) const { return static_cast<char*>(data) + row * row_bytes; }
};

// The calls of this rank and the bytes that it sends in a ring algorithm (docs/engine.md): (P - 1)
// / P of the buffer for all_gather, reduce_scatter and all_to_all, twice that for all_reduce, the
// row for broadcast (no bytes on the rank before the root, where the ring ends), the message for
// Send and Exchange.
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
  Traffic operator-(const Traffic& before) const {
    return {num_collectives - before.num_collectives, sent_bytes - before.sent_bytes,
            num_messages - before.num_messages};
  }
  bool operator==(const Traffic&) const = default;
};

// A call that a rank is about to make. All ranks must make the same collective call.
struct Call {
  enum class Kind : int32_t {
    kJoin,
    kAllocate,
    kReduceScatter,
    kAllReduce,
    kAllGather,
    kAllToAll,
    kBroadcast,
    kSplit,
    kSum,
    kMax,
    kBarrier,
    kSend,
    kRecv,
    kExchange,
  };
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kF32;
  int32_t buffer = -1;
  int32_t rank = -1;  // The root of kBroadcast, the peer of kSend, kRecv and kExchange.
  // Ranks of kJoin; bytes of kAllocate, kSend, kRecv and kExchange; elements (or bytes) of a row of
  // the collectives; a hash of the colors of kSplit.
  int64_t count = 0;
  bool operator==(const Call&) const = default;
  // The bytes of a row of a collective.
  int64_t RowBytes() const {
    return kind == Kind::kAllGather || kind == Kind::kAllToAll ? count
                                                               : count * BytesPerElem(dtype);
  }
  // "reduce_scatter(buffer 3, bf16, rows of 1024)".
  std::string ToString() const;
};

// The call of a Split by these colors.
Call SplitCall(std::span<const int> color_of_rank);

// "ranks issued different calls: rank 0 barrier, rank 2 join".
std::string DifferentCalls(int rank, const Call& call, int other_rank, const Call& other);

// Not thread-safe: one thread makes all calls. A group of size 1 has the same interface and does
// nothing. On device memory a call is enqueued on the calling thread's stream, like a kernel
// (engine/backend/stream.h).
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Traffic& traffic() const { return traffic_; }

  // A collective call: all ranks allocate the same sizes in the same order. The memory is zeroed.
  virtual CommBuffer Allocate(int64_t bytes) = 0;

  // The buffer holds size() rows of `row_elems`. Afterwards row rank() holds the sum over the ranks
  // of their row rank(); other rows are unspecified. Sums are computed in f32 in rank order, so
  // that the result does not depend on timing and is bitwise equal to that of AllReduce.
  void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
    Collect({Call::Kind::kReduceScatter, dtype, buffer.id, -1, row_elems}, buffer);
  }
  // Afterwards the buffer (size() rows) holds the sum over the ranks, bitwise equal on all.
  void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
    Collect({Call::Kind::kAllReduce, dtype, buffer.id, -1, row_elems}, buffer);
  }

  // Afterwards row q holds rank q's row q, for every q.
  void AllGather(const CommBuffer& buffer, int64_t row_bytes) {
    Collect({.kind = Call::Kind::kAllGather, .buffer = buffer.id, .count = row_bytes}, buffer);
  }
  // Afterwards row root_row of every rank holds that of rank root_row; other rows are unchanged. P
  // calls with all roots have the effect of AllGather.
  void Broadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems, int root_row) {
    Collect({Call::Kind::kBroadcast, dtype, buffer.id, root_row, row_elems}, buffer);
  }
  // Afterwards row q holds the former row rank() of rank q, for every q.
  void AllToAll(const CommBuffer& buffer, int64_t row_bytes) {
    Collect({.kind = Call::Kind::kAllToAll, .buffer = buffer.id, .count = row_bytes}, buffer);
  }

  // Point-to-point calls between any two ranks, with memory of the same kind (device or host) on
  // both sides. Messages from one rank to another arrive in order. A Recv or Exchange whose size
  // differs from that of the peer's call throws kInternal naming both.
  //
  // Recv waits for the message. Send may or may not wait until the peer receives, so that two ranks
  // that Send to each other before they Recv may deadlock. For messages in both directions, both
  // ranks call Exchange, which sends and receives the same number of bytes. A rank inside a
  // collective receives no messages. REQUIRES: peer is another rank; `sent` and `received` do not
  // overlap.
  void Send(const void* data, int64_t bytes, int peer) {
    Pass({.kind = Call::Kind::kSend, .rank = peer, .count = bytes}, data, nullptr);
  }
  void Recv(void* data, int64_t bytes, int peer) {
    Pass({.kind = Call::Kind::kRecv, .rank = peer, .count = bytes}, nullptr, data);
  }
  void Exchange(const void* sent, void* received, int64_t bytes, int peer) {
    Pass({.kind = Call::Kind::kExchange, .rank = peer, .count = bytes}, sent, received);
  }

  // A collective call with the same colors on every rank; color_of_rank[r] is that of rank r.
  // Returns the group of the ranks with this rank's color, in the order of their ranks in this
  // group; nullptr if this rank's color is negative. The new group has its own buffers, traffic and
  // broken state, and the same time-out and transport. It may outlive this group and be used by
  // another thread. Its errors name its own ranks. REQUIRES: size() colors.
  virtual std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) = 0;

  // The sum or maximum of one number over the ranks (NaN if any is NaN). Also a barrier.
  double SumScalar(double value);
  double MaxScalar(double value);
  // AllGather of numbers that are not model state; traffic() does not count it.
  void GatherScalars(const CommBuffer& buffer, int64_t row_bytes) {
    const Traffic before = traffic_;
    AllGather(buffer, row_bytes);
    traffic_ = before;
  }
  void Barrier() { GatherNumbers(Call::Kind::kBarrier, 0); }

  // The calls above as data, for a group that forwards them to another one: a collective, a message
  // (with nullptr for what the call has not), and the numbers of all ranks at kSum, kMax or
  // kBarrier. `call.buffer` is the id of `buffer`.
  void Collect(const Call& call, const CommBuffer& buffer);
  void Pass(const Call& call, const void* sent, void* received);
  virtual std::vector<double> GatherNumbers(Call::Kind kind, double number) = 0;

  // For a caller that has waited for `peer`, or kAllPeers, by other means since `since`. Throws
  // when a call of this group would stop waiting: kUnavailable if the peer has ended or left,
  // kDeadlineExceeded after the time-out. `call` is its name in errors. Not a collective call.
  using Clock = std::chrono::steady_clock;
  static constexpr int kAllPeers = -1;
  virtual void CheckPeers(const std::string& call, int peer, Clock::time_point since) = 0;

 protected:
  ProcessGroup(int rank, int size) : rank_(rank), size_(size) {
    DSAT_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  }

  // Collect and Pass call these after they have checked and counted the call.
  virtual void RunCollective(const Call& call, const CommBuffer& buffer) = 0;
  virtual void RunMessage(const Call& call, const void* sent, void* received) = 0;

  // The group that Split makes for this rank's color.
  struct Subgroup {
    int rank = 0;   // This rank's rank in it.
    int size = 0;   // 0 for a negative color.
    int first = 0;  // The rank in this group of its rank 0.
  };
  Subgroup SubgroupOf(std::span<const int> color_of_rank) const;

 private:
  int rank_;
  int size_;
  Traffic traffic_;
};

inline constexpr int kMaxShmRanks = 256;

// A group of ranks on one host that share a memory file (memfd, initially empty), which all of them
// have open; it is not closed. REQUIRES: size <= kMaxShmRanks. Returns when all ranks have joined.
// One file may serve several groups in turn if each ended without an error. A group of size 1 needs
// no file (`shared_fd` -1).
//
// Send returns when the message has been copied to the mailbox of the pair, which holds one message
// of any size in shared memory. It waits only while the peer has not received the previous message,
// so that two ranks may Send to each other before they Recv.
//
// This function and every call of the group throw
//   kDeadlineExceeded  naming the peers that did not arrive within `timeout`;
//   kUnavailable       within about 100 ms after a peer's process has ended (pidfd) or a peer's
//                      group object was destroyed: "rank 2 (pid 123) has ended". Messages that it
//                      has sent can still be received;
//   kInternal          naming both calls if two ranks make different calls (a bug of the caller);
//   kResourceExhausted from Allocate, Split, Send and Exchange if there is not enough memory. The
//                      group remains usable.
// After any other error the group is broken: every further call throws.
std::unique_ptr<ProcessGroup> MakeShmGroup(int shared_fd, int rank, int size,
                                           std::chrono::milliseconds timeout);

// How the ranks on several hosts find each other.
struct TcpGroupArgs {
  int rank = 0;
  int size = 1;
  std::string master_address;  // Rank 0's host, as every rank reaches it: a number or a name.
  int master_port = 0;         // The port at which rank 0 listens until all have joined.
  std::string key;             // A secret that all ranks share; may be empty.
  std::chrono::milliseconds timeout{};
  // On rank 0, a socket that already listens at this address, so that the launcher can let the
  // kernel choose the port; -1 if there is none. It is not closed and may serve several groups in
  // turn.
  int listening_fd = -1;
};

// A group of ranks on several hosts, over TCP. Returns when all ranks have joined; rank 0 may be
// the last. The network must be trusted, as with NCCL or Gloo: data is not encrypted, and the hash
// of the key, which rejects other processes and ranks of other groups, can be read on the network
// and reused.
//
// Rank 0 listens at the master's address if its host has that address. Otherwise, or if the master
// is a name that is a loopback address on rank 0's host, it listens at all addresses. Every other
// rank listens at a free port of the address from which it reaches rank 0. All ranks must be able
// to connect to all.
//
// Collectives are direct: every rank sends each peer only what that peer needs; a broadcast sends
// the row size() - 1 times. Send returns when the network has buffered the message; a message above
// some 100 KB to some MB waits for the receiver.
//
// Errors are those of MakeShmGroup, with addresses: "rank 2 (10.0.0.3, pid 123) has ended". In
// addition:
//   kDeadlineExceeded  if no data moves for `timeout`; a host that has vanished is detected within
//                      half a minute (kUnavailable) or by this time-out;
//   kUnavailable       on rank 0 if the port is in use, on others if a rank cannot be reached;
//   kUnauthenticated   on a rank that joins with another key; kInternal on a rank that joins with
//                      another size or as a rank that has joined; the others keep waiting;
//   kNotFound          if the master's name is unknown;
//   kResourceExhausted from Allocate if there is not enough memory, from Split if no socket is
//                      available.
std::unique_ptr<ProcessGroup> MakeTcpGroup(const TcpGroupArgs& args);

}  // namespace dsat::engine
