// Shared by all process groups: the texts of calls, traffic and the members of subgroups.
#include "engine/comm/process_group.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>

#include "base/rng.h"

namespace dsat::engine {

std::string Call::ToString() const {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  // By Kind.
  constexpr const char* kTexts[] = {
      "join",
      "allocate({count} bytes)",
      "reduce_scatter(buffer {buffer}, {type}, rows of {count})",
      "all_reduce(buffer {buffer}, {type}, rows of {count})",
      "all_gather(buffer {buffer}, rows of {count} bytes)",
      "all_to_all(buffer {buffer}, rows of {count} bytes)",
      "broadcast(buffer {buffer}, {type}, row {rank} of {count})",
      "split(colors of hash {count:x})",
      "sum of a number",
      "maximum of a number",
      "barrier",
      "send({count} bytes to rank {rank})",
      "recv({count} bytes from rank {rank})",
      "exchange({count} bytes with rank {rank})",
  };
  static_assert(std::size(kTexts) == static_cast<size_t>(Kind::kExchange) + 1);
  return fmt::format(fmt::runtime(kTexts[static_cast<size_t>(kind)]), fmt::arg("buffer", buffer),
                     fmt::arg("type", kTypes[static_cast<size_t>(dtype)]), fmt::arg("count", count),
                     fmt::arg("rank", rank));
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

void ProcessGroup::Collect(const Call& call, const CommBuffer& buffer) {
  const int64_t row_bytes = call.RowBytes();
  DSAT_CHECK(row_bytes >= 0 && size_ * row_bytes <= buffer.bytes,
             "{} rows of {} bytes in a buffer of {}", size_, row_bytes, buffer.bytes);
  // The rows that a ring algorithm sends. Numbers, barriers and splits carry no model state and are
  // not counted.
  int64_t sent_rows = size_ - 1;
  if (call.kind == Call::Kind::kAllReduce) sent_rows *= 2;
  if (call.kind == Call::Kind::kBroadcast) {
    DSAT_CHECK(call.rank >= 0 && call.rank < size_, "row {} of {}", call.rank, size_);
    const bool ends_the_ring = (rank_ + 1) % size_ == call.rank;
    sent_rows = ends_the_ring ? 0 : 1;
  }
  ++traffic_.num_collectives;
  traffic_.sent_bytes += sent_rows * row_bytes;
  RunCollective(call, buffer);
}

void ProcessGroup::Pass(const Call& call, const void* sent, void* received) {
  const int peer = call.rank;
  DSAT_CHECK(call.count >= 0 && peer >= 0 && peer < size_ && peer != rank_,
             "{} bytes between rank {} and rank {} of {}", call.count, rank_, peer, size_);
  if (call.kind != Call::Kind::kRecv) {
    ++traffic_.num_messages;
    traffic_.sent_bytes += call.count;
  }
  RunMessage(call, sent, received);
}

double ProcessGroup::SumScalar(double value) {
  const std::vector<double> values = GatherNumbers(Call::Kind::kSum, value);
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double ProcessGroup::MaxScalar(double value) {
  const std::vector<double> values = GatherNumbers(Call::Kind::kMax, value);
  // The larger number; NaN if one is NaN.
  const auto larger = [](double a, double b) { return b > a || std::isnan(b) ? b : a; };
  return std::accumulate(values.begin(), values.end(), values.front(), larger);
}

ProcessGroup::Subgroup ProcessGroup::SubgroupOf(std::span<const int> color_of_rank) const {
  DSAT_CHECK(color_of_rank.size() == static_cast<size_t>(size_), "{} colors for {} ranks",
             color_of_rank.size(), size_);
  const int color = color_of_rank[static_cast<size_t>(rank_)];
  if (color < 0) return {};
  Subgroup subgroup{.first = -1};
  for (int rank = 0; rank < size_; ++rank) {
    if (color_of_rank[static_cast<size_t>(rank)] != color) continue;
    if (subgroup.first < 0) subgroup.first = rank;
    if (rank < rank_) ++subgroup.rank;
    ++subgroup.size;
  }
  return subgroup;
}

}  // namespace dsat::engine
