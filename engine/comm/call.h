// A call of a process group, which ranks compare before they make it.
#ifndef DSAT_ENGINE_COMM_CALL_H_
#define DSAT_ENGINE_COMM_CALL_H_

#include <cstdint>
#include <span>
#include <string>

#include "engine/core/tensor.h"

namespace dsat::engine {

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
  // "reduce_scatter(buffer 3, bf16, rows of 1024)".
  std::string ToString() const;
};

// The call of a Split by these colors.
Call SplitCall(std::span<const int> color_of_rank);

// "ranks issued different calls: rank 0 barrier, rank 2 join".
std::string DifferentCalls(int rank, const Call& call, int other_rank, const Call& other);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_CALL_H_
