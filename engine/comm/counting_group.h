// Process groups that move no data: for one rank, and for predictions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/comm/shared_file.h"

namespace dsat::engine {

// Checks and counts every call.
class CountingGroup final : public ProcessGroup {
 public:
  // A complete group of size 1, in which the data of every collective is already in place.
  CountingGroup() : CountingGroup(0, 1, /*has_memory=*/true) {}
  // Without memory. Counts what `rank` of `size` would send. Sums and maxima return their argument.
  CountingGroup(int rank, int size) : CountingGroup(rank, size, /*has_memory=*/false) {}

  CommBuffer Allocate(int64_t bytes) override {
    DSAT_CHECK(bytes >= 0);
    memory_.push_back(has_memory_ ? Mapping::Private(bytes) : Mapping());
    return {static_cast<int>(memory_.size()) - 1, memory_.back().data(), bytes};
  }
  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
    const Subgroup subgroup = SubgroupOf(color_of_rank);
    if (subgroup.size == 0) return nullptr;
    return has_memory_ ? std::make_unique<CountingGroup>()
                       : std::make_unique<CountingGroup>(subgroup.rank, subgroup.size);
  }
  std::vector<double> GatherNumbers(Call::Kind, double number) override { return {number}; }
  void CheckPeers(const std::string&, int, Clock::time_point) override {}

 private:
  CountingGroup(int rank, int size, bool has_memory)
      : ProcessGroup(rank, size), has_memory_(has_memory) {}

  void RunCollective(const Call&, const CommBuffer&) override {}
  void RunMessage(const Call&, const void*, void*) override {}

  bool has_memory_;
  std::vector<Mapping> memory_;  // By buffer id.
};

}  // namespace dsat::engine
