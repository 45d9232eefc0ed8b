// Shared by all process groups: traffic and the members of subgroups.
#include "engine/comm/process_group.h"

namespace dsat::engine {

void ProcessGroup::CountRows(const CommBuffer& buffer, int64_t row_bytes, int64_t sent_rows) {
  DSAT_CHECK(row_bytes >= 0 && size_ * row_bytes <= buffer.bytes,
             "{} rows of {} bytes in a buffer of {}", size_, row_bytes, buffer.bytes);
  ++traffic_.num_collectives;
  traffic_.sent_bytes += sent_rows * row_bytes;
}

void ProcessGroup::CountBroadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems,
                                  int root_row) {
  DSAT_CHECK(root_row >= 0 && root_row < size_, "row {} of {}", root_row, size_);
  const bool ends_the_ring = (rank_ + 1) % size_ == root_row;
  CountRows(buffer, dtype, row_elems, ends_the_ring ? 0 : 1);
}

void ProcessGroup::CountSend(int64_t bytes, int peer) {
  CheckPeer(bytes, peer);
  ++traffic_.num_messages;
  traffic_.sent_bytes += bytes;
}

void ProcessGroup::CheckPeer(int64_t bytes, int peer) const {
  DSAT_CHECK(bytes >= 0 && peer >= 0 && peer < size_ && peer != rank_,
             "{} bytes between rank {} and rank {} of {}", bytes, rank_, peer, size_);
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
