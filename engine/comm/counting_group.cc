// A process group that moves no data: for one rank, and for predictions.
#include "engine/comm/counting_group.h"

namespace dsat::engine {

CommBuffer CountingGroup::Allocate(int64_t bytes) {
  DSAT_CHECK(bytes >= 0);
  memory_.push_back(kind_ == Memory::kReal ? Mapping::Private(bytes) : Mapping());
  return {static_cast<int>(memory_.size()) - 1, memory_.back().data(), bytes};
}

void CountingGroup::ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  CountRows(buffer, dtype, row_elems, size() - 1);
}

void CountingGroup::AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  CountRows(buffer, dtype, row_elems, 2 * (size() - 1));
}

void CountingGroup::AllGather(const CommBuffer& buffer, int64_t row_bytes) {
  CountRows(buffer, row_bytes, size() - 1);
}

void CountingGroup::Broadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems,
                              int root_row) {
  CountBroadcast(buffer, dtype, row_elems, root_row);
}

void CountingGroup::AllToAll(const CommBuffer& buffer, int64_t row_bytes) {
  CountRows(buffer, row_bytes, size() - 1);
}

void CountingGroup::Send(const void*, int64_t bytes, int peer) {
  CountSend(bytes, peer);
}

void CountingGroup::Recv(void*, int64_t bytes, int peer) {
  CheckPeer(bytes, peer);
}

void CountingGroup::Exchange(const void*, void*, int64_t bytes, int peer) {
  CountSend(bytes, peer);
}

std::unique_ptr<ProcessGroup> CountingGroup::Split(std::span<const int> color_of_rank) {
  const Subgroup subgroup = SubgroupOf(color_of_rank);
  if (subgroup.size == 0) return nullptr;
  return std::make_unique<CountingGroup>(subgroup.rank, subgroup.size, kind_);
}

std::unique_ptr<ProcessGroup> MakeCountingGroup(int rank, int size) {
  DSAT_CHECK(size >= 1 && rank >= 0 && rank < size, "rank {} of {}", rank, size);
  return std::make_unique<CountingGroup>(rank, size, CountingGroup::Memory::kNone);
}

}  // namespace dsat::engine
