// A process group that moves no data: for one rank, and for predictions.
#ifndef DSAT_ENGINE_COMM_COUNTING_GROUP_H_
#define DSAT_ENGINE_COMM_COUNTING_GROUP_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/mapping.h"
#include "engine/comm/process_group.h"

namespace dsat::engine {

// Checks and counts every call. With kReal memory it is a complete group of size 1, in which the
// data of every collective is already in place.
class CountingGroup final : public ProcessGroup {
 public:
  enum class Memory { kNone, kReal };

  CountingGroup(int rank, int size, Memory memory) : ProcessGroup(rank, size), kind_(memory) {}

  CommBuffer Allocate(int64_t bytes) override;
  void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) override;
  void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) override;
  void AllGather(const CommBuffer& buffer, int64_t row_bytes) override;
  void Broadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems, int root_row) override;
  void AllToAll(const CommBuffer& buffer, int64_t row_bytes) override;
  void Send(const void* data, int64_t bytes, int peer) override;
  void Recv(void* data, int64_t bytes, int peer) override;
  void Exchange(const void* sent, void* received, int64_t bytes, int peer) override;
  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override;
  double SumScalar(double value) override { return value; }
  double MaxScalar(double value) override { return value; }
  void Barrier() override {}
  void CheckPeers(const std::string&, int, Clock::time_point) override {}

 private:
  Memory kind_;
  std::vector<Mapping> memory_;  // By buffer id.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_COUNTING_GROUP_H_
