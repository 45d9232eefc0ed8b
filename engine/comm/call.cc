// The text of a call, for errors.
#include "engine/comm/call.h"

#include <fmt/format.h>

#include <string_view>

#include "base/rng.h"

namespace dsat::engine {

std::string Call::ToString() const {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  const char* type = kTypes[static_cast<size_t>(dtype)];
  const auto rows = [&](const char* name) {
    return fmt::format("{}(buffer {}, {}, rows of {})", name, buffer, type, count);
  };
  switch (kind) {
    case Kind::kJoin:
      return "join";
    case Kind::kAllocate:
      return fmt::format("allocate({} bytes)", count);
    case Kind::kReduceScatter:
      return rows("reduce_scatter");
    case Kind::kAllReduce:
      return rows("all_reduce");
    case Kind::kAllGather:
      return fmt::format("all_gather(buffer {}, rows of {} bytes)", buffer, count);
    case Kind::kAllToAll:
      return fmt::format("all_to_all(buffer {}, rows of {} bytes)", buffer, count);
    case Kind::kBroadcast:
      return fmt::format("broadcast(buffer {}, {}, row {} of {})", buffer, type, rank, count);
    case Kind::kSplit:
      return fmt::format("split(colors of hash {:x})", count);
    case Kind::kSum:
      return "sum of a number";
    case Kind::kMax:
      return "maximum of a number";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kSend:
      return fmt::format("send({} bytes to rank {})", count, rank);
    case Kind::kRecv:
      return fmt::format("recv({} bytes from rank {})", count, rank);
    case Kind::kExchange:
      return fmt::format("exchange({} bytes with rank {})", count, rank);
  }
  return "unknown call";
}

Call SplitCall(std::span<const int> color_of_rank) {
  const std::string_view bytes(reinterpret_cast<const char*>(color_of_rank.data()),
                               color_of_rank.size_bytes());
  return {.kind = Call::Kind::kSplit, .count = static_cast<int64_t>(StableHash(bytes) >> 1)};
}

std::string DifferentCalls(int rank, const Call& call, int other_rank, const Call& other) {
  return fmt::format("ranks issued different calls: rank {} {}, rank {} {}", rank, call.ToString(),
                     other_rank, other.ToString());
}

}  // namespace dsat::engine
