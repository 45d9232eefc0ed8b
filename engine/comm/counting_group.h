// A process group that moves no data: for one rank, and for predictions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/comm/shared_file.h"

namespace dsat::engine {

// Checks and counts every call. With kReal memory it is a complete group of size 1, in which the
// data of every collective is already in place.
class CountingGroup final : public ProcessGroup {
 public:
  enum class Memory { kNone, kReal };

  CountingGroup(int rank, int size, Memory memory) : ProcessGroup(rank, size), kind_(memory) {}

  CommBuffer Allocate(int64_t bytes) override {
    DSAT_CHECK(bytes >= 0);
    memory_.push_back(kind_ == Memory::kReal ? Mapping::Private(bytes) : Mapping());
    return {static_cast<int>(memory_.size()) - 1, memory_.back().data(), bytes};
  }
  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
    const Subgroup subgroup = SubgroupOf(color_of_rank);
    if (subgroup.size == 0) return nullptr;
    return std::make_unique<CountingGroup>(subgroup.rank, subgroup.size, kind_);
  }
  std::vector<double> GatherNumbers(Call::Kind, double number) override { return {number}; }
  void CheckPeers(const std::string&, int, Clock::time_point) override {}

 private:
  void RunCollective(const Call&, const CommBuffer&) override {}
  void RunMessage(const Call&, const void*, void*) override {}

  Memory kind_;
  std::vector<Mapping> memory_;  // By buffer id.
};

}  // namespace dsat::engine
