// The law of collectives: what a step issues is what its plan lists, in the same order on every
// rank, for every optimizer, ZeRO stage and pipeline.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/runtime/resources.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

using Calls = std::vector<std::string>;

std::string CallText(const char* collective, int num_ranks, int64_t row_bytes) {
  return fmt::format("{} over {} ranks, rows of {} bytes", collective, num_ranks, row_bytes);
}

// Moves nothing, and writes every call down, those of the groups that it is split into included.
class RecordingGroup final : public ProcessGroup {
 public:
  RecordingGroup(int rank, int size, Calls& calls) : ProcessGroup(rank, size), calls_(calls) {}

  CommBuffer Allocate(int64_t bytes) override { return {0, nullptr, bytes}; }
  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
    const Subgroup subgroup = SubgroupOf(color_of_rank);
    if (subgroup.size == 0) return nullptr;
    return std::make_unique<RecordingGroup>(subgroup.rank, subgroup.size, calls_);
  }
  std::vector<double> GatherNumbers(Call::Kind kind, double number) override {
    calls_.emplace_back(kind == Call::Kind::kBarrier ? "barrier" : "scalar");
    return {number};
  }
  void CheckPeers(const std::string&, int, Clock::time_point) override {}

 private:
  void RunCollective(const Call& call, const CommBuffer&) override {
    const std::map<Call::Kind, Collective> collectives = {
        {Call::Kind::kReduceScatter, Collective::kReduceScatter},
        {Call::Kind::kAllReduce, Collective::kAllReduce},
        {Call::Kind::kAllGather, Collective::kAllGather},
        {Call::Kind::kBroadcast, Collective::kBroadcasts},
        {Call::Kind::kAllToAll, Collective::kAllToAll}};
    calls_.push_back(CallText(Name(collectives.at(call.kind)), size(), call.RowBytes()));
  }
  void RunMessage(const Call&, const void*, void*) override { calls_.emplace_back("message"); }

  Calls& calls_;
};

// The plan's calls for the instruction. All numbers are f32 here, unless they are bytes.
Calls Listed(const Plan& plan, const Instruction& i) {
  Calls calls;
  for (const CollectiveCall& call : CallsOf(plan, i)) {
    const bool tied = call.group == CollectiveCall::Group::kTied;
    const int num_ranks =
        tied ? static_cast<int>(plan.units[i.unit].holders.size()) : plan.world_size;
    const int64_t elem_bytes = call.elem == CollectiveCall::Elem::kByte ? 1 : 4;
    calls.push_back(CallText(Name(call.collective), num_ranks, call.row_elems * elem_bytes));
  }
  return calls;
}

// The collectives of the second step of a rank, each after its instruction. Expects that every one
// is listed for the instruction, and scalars and messages only where they belong.
Calls StepOf(const Model& model, const DsConfig& config, int rank, int world_size) {
  Calls calls;
  RecordingGroup group(rank, world_size, calls);
  const std::unique_ptr<Kernels> kernels = MakeCountingKernels(1);
  Arena device("device memory", Arena::Kind::kCounting, 0);
  Arena host("host memory", Arena::Kind::kCounting, 0);
  const Memory memory = {device, host, *kernels, *kernels};
  Engine engine({model, group, memory, nullptr, SeqLenOf(model)}, config, 7);
  engine.TrainBatch();
  const int stage = rank / (world_size / config.pipeline.num_stages);
  const bool frozen = config.optimizer.type == "onebitadam";
  const Plan plan = frozen ? UnreducedPlanFor(model, config, world_size)
                           : PlanFor(model, config, world_size, stage);
  Calls all;
  EngineInternals(engine).set_on_done([&](const Instruction& i) {
    const auto belongs = [&](const std::string& call) {
      return (call == "scalar" && i.op == Op::kMeanLoss) ||
             (call.starts_with("all-gather") && i.op == Op::kNorm) ||
             (call == "message" && StageOffset(i.op) != 0);
    };
    std::erase_if(calls, belongs);
    EXPECT_EQ(calls, Listed(plan, i)) << ToString(i);
    for (const std::string& call : calls)
      all.push_back(ToString(i) + ": " + call);
    calls.clear();
  });
  calls.clear();
  engine.TrainBatch();
  return all;
}

// Gives the calls of the first stage's ranks.
Calls ExpectListed(const Model& model, const DsConfig& config, int world_size) {
  const int num_data = world_size / config.pipeline.num_stages;
  Calls first;
  for (int rank = 0; rank < world_size; ++rank) {
    const Calls calls = StepOf(model, config, rank, world_size);
    if (rank == 0) first = calls;
    if (rank >= num_data) continue;
    EXPECT_EQ(calls, first) << "rank " << rank;
  }
  return first;
}

bool Contains(const Calls& calls, const std::string& part) {
  return std::ranges::any_of(
      calls, [&](const auto& call) { return call.find(part) != std::string::npos; });
}

DsConfig WithOptimizer(DsConfig config, const std::string& type) {
  config.optimizer.type = type;
  config.optimizer.freeze_step = 1;
  return config;
}

TEST(CollectivesTest, EveryOptimizerAndStageIssuesWhatThePlanLists) {
  const Model model = TinyGpt2();
  for (const char* type : {"adam", "adamw", "sgd", "adagrad", "lion", "lamb"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const bool overlap : {false, true}) {
        DsConfig config = WithOptimizer(TinyConfig(stage, 3, 2), type);
        config.zero.overlap_comm = overlap;
        config.zero.reduce_bucket_size = 5000;
        config.zero.allgather_partitions = !overlap;
        const Calls calls = ExpectListed(model, config, 3);
        EXPECT_FALSE(calls.empty()) << type << stage;
        const bool sums_squares = type == std::string("lamb") && stage > 0;
        EXPECT_EQ(Contains(calls, "trust_ratios: all-reduce"), sums_squares) << type << stage;
      }
    }
  }
}

TEST(CollectivesTest, OneBitAdamAveragesWhatThePlanLists) {
  const Calls calls = ExpectListed(TinyGpt2(), WithOptimizer(TinyConfig(0, 3, 2), "onebitadam"), 3);
  EXPECT_TRUE(Contains(calls, "average_momentum(0): all-to-all"));
  EXPECT_TRUE(Contains(calls, "average_momentum(0): all-gather"));
  EXPECT_FALSE(Contains(calls, "reduce-scatter"));
}

TEST(CollectivesTest, TiedUnitsAreSummedAsThePlanLists) {
  for (int stage = 0; stage <= 1; ++stage) {
    for (const char* type : {"adamw", "lamb"}) {
      DsConfig config = WithOptimizer(TinyConfig(stage, 2, 3), type);
      config.pipeline.num_stages = 2;
      const Calls calls = ExpectListed(TinyGpt2(), config, 4);
      EXPECT_TRUE(Contains(calls, "sum_tied(0): all-reduce over 2 ranks")) << type << stage;
    }
  }
}

}  // namespace
}  // namespace dsat::engine
