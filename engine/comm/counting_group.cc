// The process group of a prediction: the same calls and the same traffic, nothing moves.
#include "engine/comm/process_group.h"

namespace dsat::engine {
namespace {

class CountingGroup final : public ProcessGroup {
 public:
  CountingGroup(int rank, int size) : ProcessGroup(rank, size) {}

  CommBuffer Allocate(int64_t bytes) override { return {num_buffers_++, nullptr, bytes}; }
  void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) override {
    Count(buffer, dtype, row_elems, 1);
  }
  void AllGather(const CommBuffer& buffer, DType dtype, int64_t row_elems) override {
    Count(buffer, dtype, row_elems, 1);
  }
  void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) override {
    Count(buffer, dtype, row_elems, 2);
  }
  double SumScalar(double value) override { return value; }
  double MaxScalar(double value) override { return value; }
  void Barrier() override {}

 private:
  int num_buffers_ = 0;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeCountingGroup(int rank, int size) {
  DSAT_CHECK(size >= 1 && rank >= 0 && rank < size, "rank {} of {}", rank, size);
  return std::make_unique<CountingGroup>(rank, size);
}

}  // namespace dsat::engine
