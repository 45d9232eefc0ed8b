// Tests what the CUDA backend records on its streams: events, whose events are used again, and the
// times of a trace. They run on the emulated GPU, where every piece of work takes one tick, a
// millisecond.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/backend/stream.h"
#include "tests/engine/backend/emulated_cuda/gpu.h"
#include "tests/engine/core/trace_events.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

using emulated_cuda::CountEvents;
using emulated_cuda::EventCounts;
using std::chrono::milliseconds;
using TimePoint = TraceEvent::Clock::time_point;

int64_t Ticks() {
  return emulated_cuda::Gpu::Get().ticks();
}

// 64 numbers of a GPU.
class GpuNumbers {
 public:
  GpuNumbers() : arena_("device memory", Arena::Kind::kReal, 0, &device_->memory()) {}
  Kernels& kernels() { return *kernels_; }
  void ReleaseKernels() { kernels_ = nullptr; }
  Tensor x() { return x_.AsTensor(DType::kF32); }
  // A piece of work that is done now, with what the calling thread has asked for before.
  void Copy(TraceEvent event = {}, Trace* trace = nullptr) {
    std::vector<float> host(64);
    const TraceSpan span(trace, std::move(event), &kernels_->stream());
    kernels_->stream().Upload(x().data, host.data(), x().bytes());
  }
  // A piece of work that is done later.
  void Fill(Trace* trace, const char* name) {
    const TraceSpan span(trace, {.lane = Trace::kCompute, .name = name}, &kernels_->stream());
    kernels_->Run(op::Fill{x(), 1});
  }

 private:
  std::unique_ptr<Device> device_ = MakeTestDevice("emulated-cuda");
  std::unique_ptr<Kernels> kernels_ = device_->MakeKernels();
  Arena arena_;
  Buffer x_ = arena_.Allocate(DType::kF32, 64, "numbers");
};

TEST(MarksTest, AnEventIsNobodyElsesAsLongAsSomebodyHoldsItsMark) {
  GpuNumbers numbers;
  std::vector<StreamEvent> events(5);
  for (StreamEvent& event : events)
    event = numbers.kernels().stream().RecordEvent();
  std::ranges::sort(events);
  EXPECT_EQ(std::ranges::adjacent_find(events), events.end());
  StreamEvent second_holder = events[2];
  const void* event = events[2].get();
  events[2] = nullptr;
  EXPECT_NE(numbers.kernels().stream().RecordEvent().get(), event);
  second_holder = nullptr;
  EXPECT_EQ(numbers.kernels().stream().RecordEvent().get(), event);
}

TEST(MarksTest, OutliveTheirKernelsAndAreDestroyedWithTheLast) {
  const int64_t before = CountEvents().num_alive;
  GpuNumbers numbers;
  StreamEvent event = numbers.kernels().stream().RecordEvent();
  numbers.kernels().stream().RecordEvent();
  numbers.ReleaseKernels();
  EXPECT_GT(CountEvents().num_alive, before);
  event = nullptr;
  EXPECT_EQ(CountEvents().num_alive, before);
}

// Else a batch would wait for the micro-batch before it.
TEST(UploadTest, ALaterUploadWaitsForNothingAndKeepsWhatTheHostHad) {
  GpuNumbers numbers;
  emulated_cuda::Gpu::Get().FinishAll();
  const int64_t before = Ticks();
  std::vector<float> host(64);
  for (int i = 1; i <= 3; ++i) {
    numbers.Fill(nullptr, "earlier work");
    std::ranges::fill(host, static_cast<float>(10 * i));
    numbers.kernels().stream().UploadLater(numbers.x().data, host.data(), numbers.x().bytes());
    EXPECT_TRUE(i > 1 || Ticks() == before);
    std::ranges::fill(host, -1.0F);
  }
  numbers.kernels().stream().Download(host.data(), numbers.x().data, numbers.x().bytes());
  EXPECT_EQ(std::ranges::count(host, 30.0F), std::ssize(host));
}

// The pieces of work of a kernel on operands of ones, at places of their own.
class CountedWork {
 public:
  Tensor New(DType dtype, int64_t num_elems) {
    buffers_.push_back(arena_.Allocate(dtype, num_elems, "an operand"));
    const Tensor tensor = buffers_.back().AsTensor(dtype);
    kernels_->Run(op::Fill{tensor, 1});
    return tensor;
  }
  template <typename Op>
  int64_t Of(const Op& op) {
    emulated_cuda::Gpu::Get().FinishAll();
    const int64_t before = Ticks();
    kernels_->Run(op);
    emulated_cuda::Gpu::Get().FinishAll();
    return Ticks() - before;
  }

 private:
  std::unique_ptr<Device> device_ = MakeTestDevice("emulated-cuda");
  std::unique_ptr<Kernels> kernels_ = device_->MakeKernels();
  Arena arena_{"device memory", Arena::Kind::kReal, 0, &device_->memory()};
  std::vector<Buffer> buffers_;
};

TEST(WorkTest, TheBackwardPassOfANormIsOneKernelAndASum) {
  CountedWork work;
  const auto matrix = [&](int64_t C) { return work.New(DType::kBF16, 40 * C); };
  for (const auto& [C, num_kernels] : {std::pair(64, 2), std::pair(4104, 3)}) {
    const auto row = [&, C = C] { return work.New(DType::kBF16, C); };
    const auto column = [&] { return work.New(DType::kF32, 40); };
    EXPECT_EQ(work.Of(op::LayerNormBackward{.dx = matrix(C),
                                            .dweight = row(),
                                            .dbias = row(),
                                            .dy = matrix(C),
                                            .x = matrix(C),
                                            .weight = row(),
                                            .mean = column(),
                                            .rstd = column(),
                                            .N = 40,
                                            .C = C,
                                            .accumulate_dx = false}),
              num_kernels)
        << C;
  }
}

TEST(WorkTest, TheBackwardPassOfAttentionOnTensorCoresIsTwoKernels) {
  CountedWork work;
  const AttentionShape shape = {.B = 1, .T = 40, .C = 64, .H = 1};
  const auto matrix = [&](int64_t C) { return work.New(DType::kBF16, 40 * C); };
  EXPECT_EQ(work.Of(op::AttentionBackward{.dqkv = matrix(192),
                                          .dout = matrix(64),
                                          .out = matrix(64),
                                          .qkv = matrix(192),
                                          .lse = work.New(DType::kF32, 40),
                                          .scratch = work.New(DType::kF32, 40),
                                          .shape = shape}),
            2);
}

struct Case {
  const char* device;
  int num_ranks;
  int stage;
  bool overlap;
  Tier optimizer;
};

DsConfig ConfigOf(const Case& c) {
  DsConfig config = TinyConfig(c.stage, c.num_ranks, 2);
  config.batch = {
      .train_batch_size = 4, .micro_batch_size = 2 / c.num_ranks, .accumulation_steps = 2};
  config.zero.overlap_comm = c.overlap;
  config.zero.reduce_bucket_size = 512;
  config.zero.stage3_prefetch_bucket_size = 4096;
  config.zero.offload_optimizer.tier = c.optimizer;
  return config;
}

struct TracedRank {
  Plan plan;
  Trace trace;
  int64_t num_ticks = 0;  // While it was traced, on all ranks.
};

// Traces the steps from `first` on.
std::vector<TracedRank> Train(const Case& c, int num_steps, std::optional<int> first) {
  const Model model = TinyMlp();
  const auto data = SyntheticFor(model);
  std::vector<TracedRank> runs(static_cast<size_t>(c.num_ranks));
  RunRanks(c.num_ranks, [&](ProcessGroup& group) {
    TracedRank& run = runs[static_cast<size_t>(group.rank())];
    TestDevice device(MakeTestDevice(c.device), group);
    Engine engine(device.For(model, data.get(), kSeqLen), ConfigOf(c), 7);
    run.plan = EngineInternals(engine).plan();
    int64_t ticks = 0;
    for (int step = 1; step <= num_steps; ++step) {
      if (step == first) {
        emulated_cuda::Gpu::Get().FinishAll();
        ticks = Ticks();
        engine.set_trace(&run.trace);
      }
      engine.TrainBatch();
    }
    if (!first) return;
    engine.set_trace(nullptr);
    run.num_ticks = Ticks() - ticks;
  });
  return runs;
}

TEST(MarksTest, ATrainingUsesAFewEventsForManyHandOffsAndTracedOrNotLeavesNone) {
  const Case c = {"emulated-nccl", 2, 3, true, Tier::kHost};
  Train(c, 1, std::nullopt);  // Measures cuBLASLt's algorithms, by events with times.
  for (const bool traced : {false, true}) {
    const EventCounts before = CountEvents();
    const int num_steps = 12;
    const auto runs = Train(c, num_steps, traced ? std::optional(num_steps) : std::nullopt);
    const EventCounts after = CountEvents();
    const int64_t num_timed = after.num_timed - before.num_timed;
    EXPECT_GT(std::ssize(runs[0].plan.transfers) * num_steps, 150);
    EXPECT_LE(after.num_made - before.num_made - num_timed, 2 * 48);  // There are two ranks.
    EXPECT_EQ(num_timed > 2 * 10, traced);  // The times of a step's phases are two each.
    EXPECT_EQ(after.num_alive, before.num_alive);
  }
}

// The waits of all ranks in a step that is not the first one, in which cuBLASLt's algorithms are
// measured.
int64_t HostWaitsOfStep(const std::string& device_name, const DsConfig& config, int num_ranks) {
  int64_t waits = 0;
  RunRanks(num_ranks, [&](ProcessGroup& group) {
    TestDevice device(MakeTestDevice(device_name), group);
    const Model model = TinyMlp();
    const auto data = SyntheticFor(model);
    Engine engine(device.For(model, data.get(), kSeqLen), config, 7);
    engine.TrainBatch();
    group.Barrier();
    const int64_t before = emulated_cuda::CountHostWaits();
    group.Barrier();
    EXPECT_EQ(engine.TrainBatch().skipped, config.fp16.enabled);
    group.Barrier();
    if (group.rank() == 0) waits = emulated_cuda::CountHostWaits() - before;
    group.Barrier();
  });
  return waits;
}

DsConfig ClippedConfig(DType dtype, int stage, int num_ranks, int64_t accumulation_steps) {
  DsConfig config = TinyConfig(stage, num_ranks, accumulation_steps);
  config.gradient_clipping = 1e-3;
  SetPrecision(config, dtype);
  config.fp16.initial_scale_power = 60;  // Overflows twice.
  return config;
}

TEST(HostWaitsTest, AStepWaitsOnceHoweverManyMicroBatchesItHas) {
  EXPECT_EQ(HostWaitsOfStep("emulated-cuda", ClippedConfig(DType::kBF16, 0, 1, 1), 1), 1);
  EXPECT_EQ(HostWaitsOfStep("emulated-cuda", ClippedConfig(DType::kF16, 3, 1, 4), 1), 1);
}

TEST(HostWaitsTest, EachOfSeveralRanksWaitsOncePerStepWithNccl) {
  for (const bool overlap : {false, true}) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(fmt::format("stage {} {}", stage, overlap));
      DsConfig config = ClippedConfig(stage == 3 ? DType::kF16 : DType::kBF16, stage, 2, 2);
      config.zero.overlap_comm = overlap;
      // For the work and, a few bytes later, for their copy.
      EXPECT_EQ(HostWaitsOfStep("emulated-nccl", config, 2), 2 * 2);
    }
  }
}

// A GPU does work at any time after it is asked to, and what is measured takes more or less time.
TEST(AnyTimeTest, WorkGivesTheSameBitsWheneverItIsDone) {
  setenv("DSAT_TEST_DEVICE", "emulated-nccl", 1);
  DsConfig config = TinyConfig(1, 2, 2);
  config.batch = {.train_batch_size = 20, .micro_batch_size = 5, .accumulation_steps = 2};
  config.pipeline.num_stages = 2;
  const auto train = [&] { return Train(TinyMlp(), config, 4, 2); };
  std::vector<RankRun> runs;
  {
    const std::jthread gpu([](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::microseconds{100}))
        emulated_cuda::Gpu::Get().FinishAll();
    });
    runs = train();
  }
  const std::vector<RankRun> late = train();
  for (size_t rank = 0; rank < runs.size(); ++rank) {
    EXPECT_EQ(runs[rank].steps[1].loss, late[rank].steps[1].loss);
    EXPECT_TRUE(runs[rank].params == late[rank].params) << rank;
  }
  unsetenv("DSAT_TEST_DEVICE");
}

TEST(PhaseTimesTest, AStepsPhasesLastAsLongAsTheGpuWorks) {
  const Model model = TinyMlp();
  RunRanks(1, [&](ProcessGroup& group) {
    TestDevice device(MakeTestDevice("emulated-cuda"), group);
    const auto data = SyntheticFor(model);
    Engine engine(device.For(model, data.get(), kSeqLen), TinyConfig(0, 1, 2), 7);
    engine.TrainBatch();
    emulated_cuda::Gpu::Get().FinishAll();
    const int64_t before = Ticks();
    const StepResult step = engine.TrainBatch();
    const auto ticks = static_cast<double>(Ticks() - before);
    EXPECT_GT(step.forward_ms, 10);
    EXPECT_GT(step.backward_ms, 10);
    // The last piece of work brings the numbers to the host.
    EXPECT_EQ(step.forward_ms + step.backward_ms + step.step_ms, ticks - 1);
  });
}

TEST(GpuLanesTest, AnEventLiesWhereItsStreamWorkedNotWhereItWasAskedTo) {
  GpuNumbers numbers;
  emulated_cuda::Gpu::Get().FinishAll();
  Trace trace;
  const int copies = trace.Lane("copies");
  numbers.kernels().stream().set_trace(&trace);
  {
    const TraceSpan span(&trace, {.lane = Trace::kCompute, .name = "two"},
                         &numbers.kernels().stream());
    numbers.kernels().Run(op::Fill{numbers.x(), 1});
    numbers.kernels().Run(op::Fill{numbers.x(), 2});
  }
  numbers.Fill(&trace, "one");
  std::jthread([&] { numbers.Copy({.lane = copies, .name = "beside"}, &trace); }).join();
  numbers.kernels().stream().set_trace(nullptr);

  const std::vector<TraceEvent> asked = EventsOn(trace, "compute"),
                                compute = EventsOn(trace, "gpu compute"),
                                copy = EventsOn(trace, "gpu copies");
  ASSERT_EQ(compute.size(), 2U);
  ASSERT_EQ(copy.size(), 1U);
  // The copy ran first: nobody had waited for the fills.
  const TimePoint begin = compute[0].begin;
  EXPECT_STREQ(compute[0].name, "two");
  EXPECT_EQ(compute[0].end, begin + milliseconds(3));
  EXPECT_STREQ(compute[1].name, "one");
  EXPECT_EQ(compute[1].begin, begin + milliseconds(3));
  EXPECT_EQ(compute[1].end, begin + milliseconds(4));
  EXPECT_STREQ(copy[0].name, "beside");
  EXPECT_EQ(copy[0].begin, begin);
  EXPECT_EQ(copy[0].end, begin + milliseconds(1));
}

TEST(GpuLanesTest, ALongTraceUsesTheEventsOfPassedSpansAgainAndKeepsEverySpan) {
  GpuNumbers numbers;
  Trace trace;
  const int num_spans = 3000;
  const int64_t before = CountEvents().num_timed;
  numbers.kernels().stream().set_trace(&trace);
  for (int i = 0; i < num_spans; ++i)
    numbers.Fill(&trace, "fill");
  numbers.kernels().stream().set_trace(nullptr);
  EXPECT_LT(CountEvents().num_timed - before, 1500);
  const std::vector<TraceEvent> events = EventsOn(trace, "gpu compute");
  ASSERT_EQ(std::ssize(events), num_spans);
  EXPECT_EQ(events.back().end - events.front().begin, milliseconds(num_spans));
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}Ranks{}Stage{}{}{}", std::string(c.device).ends_with("nccl") ? "Nccl" : "",
                     c.num_ranks, c.stage, c.overlap ? "Overlap" : "",
                     c.optimizer == Tier::kHost ? "OptimizerOnHost" : "");
}

class GpuLanesOfTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Ways, GpuLanesOfTest,
                         testing::Values(Case{"emulated-cuda", 1, 0, false, Tier::kDevice},
                                         Case{"emulated-cuda", 1, 2, true, Tier::kHost},
                                         Case{"emulated-cuda", 1, 3, true, Tier::kHost},
                                         Case{"emulated-cuda", 2, 2, false, Tier::kDevice},
                                         Case{"emulated-nccl", 2, 2, true, Tier::kDevice},
                                         Case{"emulated-nccl", 2, 3, true, Tier::kHost}),
                         NameOf);

// One thing at a time, and what is a part of it.
void ExpectInOrderOrInside(const std::vector<TraceEvent>& events) {
  std::vector<TraceEvent> around;
  for (const TraceEvent& event : events) {
    while (!around.empty() && around.back().end <= event.begin)
      around.pop_back();
    EXPECT_TRUE(around.empty() || event.end <= around.back().end) << event.name;
    around.push_back(event);
  }
}

TEST_P(GpuLanesOfTest, AStreamDoesOneThingAtATimeInTheOrderOfThePlan) {
  const Case& c = GetParam();
  for (const TracedRank& run : Train(c, 2, 2)) {
    const std::vector<TraceEvent> compute = EventsOn(run.trace, "gpu compute");
    ExpectInOrderOrInside(compute);
    std::vector<std::string> expected, seen;
    for (const Instruction& i : run.plan.instructions) {
      if (i.op == Op::kForward || i.op == Op::kBackward)
        expected.push_back(fmt::format("{} {}.{}", Name(i.op), i.micro_batch, i.unit));
    }
    for (const TraceEvent& event : compute) {
      const std::string name = event.name;
      if (name != Name(Op::kForward) && name != Name(Op::kBackward)) continue;
      seen.push_back(fmt::format("{} {}.{}", name, event.micro_batch, event.unit));
      EXPECT_GE(event.end - event.begin, milliseconds(1)) << seen.back();
    }
    EXPECT_EQ(seen, expected);
    for (const std::string lane : {"communication", "copies", "copies for communication"}) {
      const std::vector<TraceEvent> on_gpu = EventsOn(run.trace, "gpu " + lane);
      EXPECT_EQ(on_gpu.size(), EventsOn(run.trace, lane).size()) << lane;
      ExpectInOrder(on_gpu);
    }
    EXPECT_EQ(EventsOn(run.trace, "gpu communication").empty(), !c.overlap);
    EXPECT_EQ(EventsOn(run.trace, "gpu copies").empty(), c.optimizer == Tier::kDevice);
  }
}

// The time in which at least one event of a GPU's lanes lasts.
TraceEvent::Clock::duration Covered(const Trace& trace) {
  std::vector<TraceEvent> events;
  for (const std::string& lane : trace.lanes()) {
    if (!lane.starts_with("gpu ")) continue;
    const std::vector<TraceEvent> more = EventsOn(trace, lane);
    events.insert(events.end(), more.begin(), more.end());
  }
  std::ranges::sort(events, {}, &TraceEvent::begin);
  TraceEvent::Clock::duration covered{};
  TimePoint end;
  for (const TraceEvent& event : events) {
    covered += std::max(event.end, end) - std::max(event.begin, end);
    end = std::max(event.end, end);
  }
  return covered;
}

// On one rank: the GPU is shared here.
TEST(GpuLanesTest, NoWorkOfAStepIsOutsideOfEveryEvent) {
  for (const Case& c : {Case{"emulated-cuda", 1, 0, false, Tier::kDevice},
                        Case{"emulated-cuda", 1, 2, true, Tier::kHost},
                        Case{"emulated-cuda", 1, 3, true, Tier::kHost}}) {
    SCOPED_TRACE(c.stage);
    const std::vector<TracedRank> runs = Train(c, 2, 2);
    EXPECT_GT(runs[0].num_ticks, 50);
    EXPECT_EQ(Covered(runs[0].trace), milliseconds(runs[0].num_ticks));
  }
}

}  // namespace
}  // namespace dsat::engine
