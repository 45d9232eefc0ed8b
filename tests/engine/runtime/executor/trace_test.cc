// Traces of real steps: what is recorded, on which lane, in which order; and the JSON of all ranks.
#include "engine/core/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/json.h"
#include "engine/runtime/write_trace.h"
#include "tests/engine/core/trace_events.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

constexpr int kNumSteps = 3;
constexpr int kTracedStep = 2;

struct TracedRank {
  Plan plan;
  Trace trace;  // The trace of kTracedStep.
  TierTraffic copied;
  AioTraffic disk;
  std::vector<double> losses;
  std::string text;  // GatherTraces.

  // As they were recorded.
  std::vector<TraceEvent> Instructions() const {
    std::vector<TraceEvent> events = trace.events();
    std::erase_if(events, [](const TraceEvent& event) { return event.phase == nullptr; });
    return events;
  }
};

void RunTraced(const DsConfig& config, bool traces, ProcessGroup& group, TracedRank& rank) {
  const Model model = TinyGpt2();
  const auto data = SyntheticFor(model);
  TestDevice device(group);
  const Kernels& kernels = device.memory().kernels();
  Engine engine(device.For(model, data.get(), kSeqLen), config, 7);
  rank.plan = EngineInternals(engine).plan();
  for (int step = 1; step <= kNumSteps; ++step) {
    const bool traced = traces && step == kTracedStep;
    const TierTraffic copied = kernels.stream().tier_traffic();
    const AioTraffic disk = EngineInternals(engine).states().disk_traffic();
    if (traced) engine.set_trace(&rank.trace);
    rank.losses.push_back(engine.TrainBatch().loss);
    if (!traced) continue;
    engine.set_trace(nullptr);
    rank.copied = kernels.stream().tier_traffic() - copied;
    rank.disk = EngineInternals(engine).states().disk_traffic() - disk;
  }
  if (traces) rank.text = GatherTraces(rank.trace, group);
}

std::vector<TracedRank> TrainTraced(const DsConfig& config, int world_size, bool traces = true) {
  std::vector<TracedRank> ranks(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](ProcessGroup& group) {
    RunTraced(config, traces, group, ranks[static_cast<size_t>(group.rank())]);
  });
  return ranks;
}

DsConfig Overlapping(int stage) {
  DsConfig config = TinyConfig(stage, 2, 2);
  config.zero.overlap_comm = true;
  config.zero.reduce_bucket_size = 4096;
  return config;
}

DsConfig OnDisk() {
  DsConfig config = TinyConfig(3, 2, 1);
  const std::string folder = std::filesystem::temp_directory_path();
  config.zero.offload_optimizer = {.tier = Tier::kNvme, .nvme_path = folder};
  config.zero.offload_optimizer.buffer_count = 20;
  config.zero.offload_param = {.tier = Tier::kNvme, .nvme_path = folder};
  config.zero.offload_param.max_in_cpu = 0;
  config.zero.sub_group_size = 1024;
  return config;
}

DsConfig InPipeline() {
  DsConfig config = TinyConfig(1, 2, 2);
  config.batch = {.train_batch_size = 12, .micro_batch_size = 6, .accumulation_steps = 2};
  config.pipeline.num_stages = 2;
  return config;
}

class TraceOfTest : public testing::TestWithParam<int> {
 protected:
  static DsConfig Config() {
    const int n = GetParam();
    if (n == 4) return OnDisk();
    if (n == 5) return InPipeline();
    return n == 0 ? TinyConfig(1, 2, 2) : Overlapping(n);
  }
};

TEST_P(TraceOfTest, EveryInstructionOfThePlanIsThereOnceInItsOrderAndInItsStep) {
  for (const TracedRank& rank : TrainTraced(Config(), 2)) {
    const std::vector<TraceEvent> steps = EventsOn(rank.trace, "steps");
    ASSERT_EQ(steps.size(), 1U);
    EXPECT_EQ(steps[0].step, kTracedStep);
    const std::vector<TraceEvent> events = rank.Instructions();
    ASSERT_EQ(events.size(), rank.plan.instructions.size());
    ExpectInOrder(events);
    EXPECT_LE(steps[0].begin, events.front().begin);
    EXPECT_GE(steps[0].end, events.back().end);
    for (size_t i = 0; i < events.size(); ++i) {
      const Instruction& instruction = rank.plan.instructions[i];
      EXPECT_STREQ(events[i].name, Name(instruction.op));
      EXPECT_STREQ(events[i].phase, Name(instruction.phase));
      EXPECT_EQ(events[i].unit, instruction.unit);
      EXPECT_EQ(events[i].micro_batch, instruction.micro_batch);
      EXPECT_EQ(events[i].sub_group, instruction.sub_group);
    }
  }
}

TEST_P(TraceOfTest, TracingChangesNoNumber) {
  EXPECT_EQ(TrainTraced(Config(), 2, true)[0].losses, TrainTraced(Config(), 2, false)[0].losses);
}

std::string NameOf(const testing::TestParamInfo<int>& info) {
  constexpr const char* kNames[] = {"InTurn",        "OverlapStage1", "OverlapStage2",
                                    "OverlapStage3", "OnDisk",        "Pipeline"};
  return kNames[info.param];
}

INSTANTIATE_TEST_SUITE_P(Ways, TraceOfTest, testing::Range(0, 6), NameOf);

// Collectives by the text of their transfer.
std::map<std::string, int> Collectives(const std::vector<TraceEvent>& events) {
  std::map<std::string, int> counts;
  for (const TraceEvent& event : events) {
    const bool is_collective = event.phase == nullptr && !event.about.empty();
    if (is_collective) ++counts[event.about];
  }
  return counts;
}

std::map<std::string, int> CollectivesOf(const Plan& plan) {
  std::map<std::string, int> counts;
  for (const Instruction& i : plan.instructions) {
    if (i.op == Op::kStart) ++counts[ToString(plan.transfers[i.transfer])];
  }
  return counts;
}

TEST(TraceTest, EveryInstructionOfStepsAndEvaluationsIsHeardOf) {
  const Model model = TinyGpt2();
  const auto data = Synthetic();
  OnEngines(model, TinyConfig(2, 1, 3), 1, [&](Engine& engine, ProcessGroup&) {
    int64_t heard = 0;
    engine.set_on_work([&heard] { ++heard; });
    engine.TrainBatch();
    EXPECT_EQ(heard, std::ssize(EngineInternals(engine).plan().instructions));
    const int64_t before = heard;
    engine.Evaluate(*data, 1);
    EXPECT_GT(heard, before + 3 * std::ssize(model.layers));
  });
}

TEST(TraceTest, WithOverlapCollectivesHaveALaneOfTheirOwnBesideBackward) {
  for (const TracedRank& rank : TrainTraced(Overlapping(2), 2)) {
    const std::vector<TraceEvent> collectives = EventsOn(rank.trace, "communication");
    ExpectInOrder(collectives);
    EXPECT_EQ(Collectives(collectives), CollectivesOf(rank.plan));
    EXPECT_EQ(Collectives(EventsOn(rank.trace, "compute")).size(), 0U);

    // A collective lies between its start and its wait; some have a backward between these.
    const std::vector<TraceEvent> events = rank.Instructions();
    int num_beside_backward = 0;
    size_t next = 0;
    for (size_t start = 0; start < events.size(); ++start) {
      const Instruction& started = rank.plan.instructions[start];
      if (started.op != Op::kStart) continue;
      const TraceEvent& collective = collectives[next++];
      EXPECT_GE(collective.begin, events[start].begin);
      EXPECT_EQ(collective.bytes, rank.plan.transfers[started.transfer].row_elems * 2 * 4);
      bool beside_backward = false;
      size_t end = start + 1;
      for (; rank.plan.instructions[end].op != Op::kWait ||
             rank.plan.instructions[end].transfer != started.transfer;
           ++end)
        beside_backward |= rank.plan.instructions[end].op == Op::kBackward;
      EXPECT_LE(collective.end, events[end].end);
      num_beside_backward += beside_backward ? 1 : 0;
    }
    EXPECT_GT(num_beside_backward, 0);
  }
}

TEST(TraceTest, WithOverlapTheWaitsOfTheComputeLaneAreEvents) {
  for (const TracedRank& rank : TrainTraced(Overlapping(2), 2)) {
    std::vector<TraceEvent> waits;
    for (const TraceEvent& event : EventsOn(rank.trace, "compute")) {
      if (event.name == std::string("wait for communication")) waits.push_back(event);
    }
    std::vector<TraceEvent> instructions = rank.Instructions();
    std::erase_if(instructions,
                  [](const TraceEvent& event) { return event.name != std::string("wait"); });
    ASSERT_EQ(waits.size(), instructions.size());
    ASSERT_FALSE(waits.empty());
    for (size_t i = 0; i < waits.size(); ++i) {
      EXPECT_GE(waits[i].begin, instructions[i].begin);
      EXPECT_LE(waits[i].end, instructions[i].end);
    }
  }
}

TEST(TraceTest, WithoutOverlapCollectivesAreOnTheComputeLaneInTheirStarts) {
  DsConfig config = Overlapping(2);
  config.zero.overlap_comm = false;
  for (const TracedRank& rank : TrainTraced(config, 2)) {
    EXPECT_THAT(rank.trace.lanes(), testing::Not(testing::Contains("communication")));
    const std::vector<TraceEvent> events = EventsOn(rank.trace, "compute");
    EXPECT_EQ(Collectives(events), CollectivesOf(rank.plan));
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].phase != nullptr) continue;
      ASSERT_GT(i, 0U);
      EXPECT_STREQ(events[i - 1].name, "start");
      EXPECT_LE(events[i].end, events[i - 1].end);
    }
  }
}

int64_t BytesOf(const std::vector<TraceEvent>& events, const std::string& name) {
  int64_t bytes = 0;
  for (const TraceEvent& event : events) {
    if (event.name == name) bytes += event.bytes;
  }
  return bytes;
}

TEST(TraceTest, CopiesAndDiskRequestsCarryTheBytesThatWereCounted) {
  for (const TracedRank& rank : TrainTraced(OnDisk(), 2)) {
    const std::vector<TraceEvent> copies = EventsOn(rank.trace, "copies");
    ExpectInOrder(copies);
    EXPECT_GT(rank.copied.to_host_bytes, 0);
    EXPECT_EQ(BytesOf(copies, "to host"), rank.copied.to_host_bytes);
    EXPECT_EQ(BytesOf(copies, "to device"), rank.copied.to_device_bytes);
    int64_t read_bytes = 0, written_bytes = 0;
    for (const char* disk : {"disk, optimizer state", "disk, parameters"}) {
      const std::vector<TraceEvent> requests = EventsOn(rank.trace, disk);
      ExpectInOrder(requests);
      EXPECT_GT(BytesOf(requests, "read"), 0);
      read_bytes += BytesOf(requests, "read");
      written_bytes += BytesOf(requests, "write");
    }
    EXPECT_EQ(read_bytes, rank.disk.read_bytes);
    EXPECT_EQ(written_bytes, rank.disk.written_bytes);
    for (const TraceEvent& request : EventsOn(rank.trace, "disk, parameters"))
      EXPECT_GE(request.unit, 0);
    for (const TraceEvent& request : EventsOn(rank.trace, "disk, optimizer state"))
      EXPECT_GE(request.sub_group, 0);
  }
}

TEST(TraceTest, APipelinesMessagesCarryTheirBytes) {
  const std::vector<TracedRank> ranks = TrainTraced(InPipeline(), 2);
  const int64_t message_bytes = 6 * kSeqLen * 24 * 4;  // B, T, C, f32.
  const auto before = ranks[0].Instructions();
  const auto after = ranks[1].Instructions();
  // There are two micro-batches; where messages cross, the bytes are those of each way.
  for (const char* name : {"send_output", "send_output_receive_grad", "receive_grad"})
    EXPECT_EQ(BytesOf(before, name), message_bytes) << name;
  for (const char* name : {"receive_input", "send_grad_receive_input", "send_grad"})
    EXPECT_EQ(BytesOf(after, name), message_bytes) << name;
}

TEST(TraceTest, TheTextHasAProcessPerRankAThreadPerLaneAndEveryEvent) {
  const std::vector<TracedRank> ranks = TrainTraced(Overlapping(3), 2);
  EXPECT_EQ(ranks[1].text, "");
  const Json root = Json::parse(ranks[0].text);
  std::map<int, size_t> num_events;
  std::map<std::pair<int, int>, std::string> lanes;
  std::map<int, std::string> processes;
  for (const Json& event : root.at("traceEvents")) {
    const int pid = event.at("pid");
    const int tid = event.at("tid");
    if (event.at("ph") == "X") {
      ++num_events[pid];
      EXPECT_TRUE(lanes.contains({pid, tid}));  // Named before it is used.
      EXPECT_GT(event.at("ts").get<double>(), 0);
      EXPECT_GE(event.at("dur").get<double>(), 0);
    } else if (event.at("name") == "thread_name") {
      lanes[{pid, tid}] = event.at("args").at("name");
    } else if (event.at("name") == "process_name") {
      processes[pid] = event.at("args").at("name");
    }
  }
  EXPECT_THAT(processes,
              testing::ElementsAre(testing::Pair(0, "rank 0"), testing::Pair(1, "rank 1")));
  for (int r = 0; r < 2; ++r) {
    const TracedRank& rank = ranks[static_cast<size_t>(r)];
    EXPECT_EQ(num_events[r], rank.trace.events().size());
    const std::vector<std::string> names = rank.trace.lanes();
    for (size_t i = 0; i < names.size(); ++i)
      EXPECT_EQ((lanes[{r, static_cast<int>(i)}]), names[i]);
  }
}

TEST(TraceTest, ATextLargerThanAMessageArrivesWhole) {
  std::string text;
  RunRanks(2, [&](ProcessGroup& group) {
    Trace trace;
    const int num_events = group.rank() == 1 ? 30'000 : 0;
    for (int i = 0; i < num_events; ++i)
      trace.Add({.lane = Trace::kCompute, .name = "event", .unit = i});
    const std::string gathered = GatherTraces(trace, group);
    if (group.rank() == 0) text = gathered;
  });
  EXPECT_GT(text.size(), size_t{2} << 20);
  int next = 0;
  const Json root = Json::parse(text);
  for (const Json& event : root.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    EXPECT_EQ(event.at("args").at("unit"), next++);
  }
  EXPECT_EQ(next, 30'000);
}

TEST(TraceTest, ADevicesStreamIsALaneWhoseTimesComeAfterwards) {
  Trace trace;
  const int stream = trace.Lane("stream 1");
  EXPECT_EQ(trace.Lane("stream 1"), stream);
  EXPECT_EQ(trace.lanes(), (std::vector<std::string>{"steps", "compute", "stream 1"}));
  const TraceEvent::Clock::time_point begin{std::chrono::microseconds(7)};
  trace.Add({.lane = stream,
             .name = "matmul",
             .begin = begin,
             .end = begin + std::chrono::nanoseconds(1500)});
  RunRanks(1, [&](ProcessGroup& group) {
    const Json root = Json::parse(GatherTraces(trace, group));
    const Json& event = root.at("traceEvents").back();
    EXPECT_EQ(event.at("tid"), stream);
    EXPECT_EQ(event.at("ts"), 7.0);
    EXPECT_EQ(event.at("dur"), 1.5);
    EXPECT_EQ(event.at("args"), Json::object());
  });
}

}  // namespace
}  // namespace dsat::engine
