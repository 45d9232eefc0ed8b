// Arenas: limits, counts, reuse and errors.
#include "engine/core/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/buffer_plan.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// Bytes of memory that this process has touched.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::string MessageOfOutOfMemory(Arena& arena, int64_t bytes, const char* use) {
  try {
    const Buffer buffer = arena.Allocate(bytes, use);
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.code(), ErrorCode::kResourceExhausted);
    return e.what();
  }
  return "it fits";
}

class ArenaKindTest : public testing::TestWithParam<Arena::Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, ArenaKindTest,
                         testing::Values(Arena::Kind::kReal, Arena::Kind::kCounting));

TEST_P(ArenaKindTest, CountsBytesRoundedTo64) {
  Arena arena("memory", GetParam(), 0);
  {
    const Buffer a = arena.Allocate(1, "a");
    const Buffer b = arena.Allocate(64, "b");
    const Buffer c = arena.Allocate(DType::kBF16, 33, "c");
    EXPECT_EQ(a.bytes(), 1);
    EXPECT_EQ(c.bytes(), 66);
    EXPECT_EQ(arena.live_bytes(), 64 + 64 + 128);
  }
  EXPECT_EQ(arena.live_bytes(), 0);
  EXPECT_EQ(arena.peak_bytes(), 256);
}

TEST_P(ArenaKindTest, PeakIsTheHighestLiveSumSinceItsReset) {
  Arena arena("memory", GetParam(), 0);
  Buffer a = arena.Allocate(640, "a");
  Buffer b = arena.Allocate(1280, "b");
  a.Free();
  const Buffer c = arena.Allocate(64, "c");
  EXPECT_EQ(arena.peak_bytes(), 1920);
  arena.ResetPeak();
  EXPECT_EQ(arena.peak_bytes(), 1344);
  b.Free();
  EXPECT_EQ(arena.peak_bytes(), 1344);
}

TEST_P(ArenaKindTest, LimitIsExact) {
  Arena arena("memory", GetParam(), 1024);
  const Buffer a = arena.Allocate(512, "a");
  Buffer b = arena.Allocate(512, "b");
  EXPECT_THROW(arena.Allocate(1, "c"), OutOfMemory);
  b.Free();
  EXPECT_THROW(arena.Allocate(513, "c"), OutOfMemory);
  EXPECT_EQ(arena.live_bytes(), 512);
  EXPECT_EQ(arena.peak_bytes(), 1024);
  EXPECT_NO_THROW(arena.Allocate(449, "c"));
}

TEST_P(ArenaKindTest, OutOfMemoryNamesUseAndNumbers) {
  Arena arena("device memory", GetParam(), 512 * kMiB);
  const Buffer held = arena.Allocate(500 * kMiB, "parameters");
  EXPECT_EQ(MessageOfOutOfMemory(arena, 24 * kMiB, "attention scratch"),
            "device memory: 24.0 MiB for attention scratch do not fit: 500.0 MiB of 512.0 MiB in "
            "use");
}

TEST_P(ArenaKindTest, ChargesCountAgainstTheLimit) {
  Arena arena("memory", GetParam(), 1024);
  Buffer buckets = arena.Charge(1000, "buckets");
  EXPECT_EQ(arena.live_bytes(), 1024);
  EXPECT_EQ(arena.peak_bytes(), 1024);
  EXPECT_THROW((void)arena.Charge(1, "more"), OutOfMemory);
  EXPECT_THROW(arena.Allocate(1, "more"), OutOfMemory);
  buckets.Free();
  EXPECT_EQ(arena.live_bytes(), 0);
  EXPECT_NO_THROW(arena.Allocate(1024, "all"));
}

TEST_P(ArenaKindTest, BuffersMove) {
  Arena arena("memory", GetParam(), 0);
  Buffer a = arena.Allocate(64, "a");
  Buffer b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): what a moved-from buffer is, is the point.
  EXPECT_TRUE(b);
  EXPECT_EQ(arena.live_bytes(), 64);
  Buffer c = arena.Allocate(128, "c");
  c = std::move(b);
  EXPECT_EQ(c.bytes(), 64);
  EXPECT_EQ(arena.live_bytes(), 64);
  c.Free();
  c.Free();
  EXPECT_FALSE(c);
  EXPECT_EQ(arena.live_bytes(), 0);
}

TEST_P(ArenaKindTest, EmptyBuffersAreValidAndFree) {
  Arena arena("memory", GetParam(), 64);
  const Buffer all = arena.Allocate(64, "all");
  const Buffer empty = arena.Allocate(0, "nothing");
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.AsTensor(DType::kF32).num_elems, 0);
}

TEST(ArenaTest, CountingArenaHasNoDataAndNoMachineLimit) {
  Arena arena("memory", Arena::Kind::kCounting, 0);
  const Buffer a = arena.Allocate(int64_t{1} << 60, "more than any machine");
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.AsTensor(DType::kF32).num_elems, int64_t{1} << 58);
  EXPECT_EQ(arena.peak_bytes(), int64_t{1} << 60);
}

TEST(ArenaTest, RealBuffersAreAlignedAndDistinct) {
  Arena arena("memory", Arena::Kind::kReal, 0);
  std::vector<Buffer> buffers;
  for (const int64_t bytes : {int64_t{1}, int64_t{100}, int64_t{100}, 3 * kMiB + 1, 3 * kMiB + 1}) {
    buffers.push_back(arena.Allocate(bytes, "x"));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % 64, 0U);
    std::memset(buffers.back().data(), static_cast<int>(buffers.size()),
                static_cast<size_t>(bytes));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const char* data = static_cast<const char*>(buffers[i].data());
    EXPECT_EQ(data[0], static_cast<char>(i + 1));
    EXPECT_EQ(data[buffers[i].bytes() - 1], static_cast<char>(i + 1));
  }
}

TEST(ArenaTest, FreedBlocksComeBack) {
  Arena arena("memory", Arena::Kind::kReal, 0);
  for (const int64_t bytes : {int64_t{640}, 4 * kMiB}) {
    Buffer a = arena.Allocate(bytes, "a");
    void* data = a.data();
    a.Free();
    EXPECT_EQ(arena.Allocate(bytes - 1, "same rounded size").data(), data);
  }
}

// It says nothing about the configuration: other programs share the host.
TEST(ArenaTest, AHostWithoutMemoryIsAShortage) {
  Arena arena("host memory", Arena::Kind::kReal, 0);
  const Buffer held = arena.Allocate(kMiB, "parameters");
  arena.Allocate(4 * kMiB, "freed at once").Free();
  std::string what;
  try {
    arena.Allocate(int64_t{1} << 60, "optimizer states");
  } catch (const OutOfMemory&) {
    FAIL();
  } catch (const Error& error) {
    what = error.what();
  }
  EXPECT_EQ(what, "host memory: the system has no 1.0 EiB for optimizer states: 1.0 MiB in use");
  EXPECT_EQ(arena.live_bytes(), kMiB);
  EXPECT_EQ(arena.peak_bytes(), 5 * kMiB);
}

// Blocks of sizes that never come back must not pile up, with a limit or without.
TEST(ArenaTest, FreeBlocksDoNotGrowWithoutBound) {
  for (const int64_t limit : {int64_t{0}, 16 * kMiB}) {
    Arena arena("memory", Arena::Kind::kReal, limit);
    const int64_t before = ResidentBytes();
    for (int64_t i = 0; i < 100; ++i) {
      Buffer a = arena.Allocate(8 * kMiB + i * 64, "a new size");
      std::memset(a.data(), 1, static_cast<size_t>(a.bytes()));
    }
    EXPECT_LT(ResidentBytes() - before, 48 * kMiB) << "limit " << limit;
    EXPECT_LT(arena.peak_bytes(), 9 * kMiB);
  }
}

// Gives one block.
class OneBlock final : public MemorySource {
 public:
  explicit OneBlock(int& num_live) : num_live_(num_live) {}
  void* Allocate(int64_t bytes) override {
    if (std::exchange(given_, true)) return nullptr;
    ++num_live_;
    return system_.Allocate(bytes);
  }
  void Free(void* block, int64_t bytes) override {
    --num_live_;
    system_.Free(block, bytes);
  }
  bool host_visible() const override { return true; }
  bool Holds(const void*) override { return true; }

 private:
  SystemMemory system_;
  bool given_ = false;
  int& num_live_;
};

// A device whose driver gives memory in pages of 4096 bytes.
class PagedMemory final : public MemorySource {
 public:
  void* Allocate(int64_t bytes) override {
    used_bytes += bytes;
    return system_.Allocate(bytes);
  }
  void Free(void* block, int64_t bytes) override {
    used_bytes -= bytes;
    system_.Free(block, bytes);
  }
  bool host_visible() const override { return true; }
  bool Holds(const void*) override { return true; }
  int64_t granule_bytes() const override { return 4096; }

  int64_t used_bytes = 0;

 private:
  SystemMemory system_;
};

// Two steps of a small training: activations, of which the first is needed longest, and gradients
// that are made when these go. `more` is what a step may ask for besides.
void TakeSteps(Arena& arena, int num_steps, int64_t more = 0) {
  const Buffer state = arena.Allocate(6400, "state");
  for (int step = 0; step < num_steps; ++step) {
    arena.BeginStep();
    std::vector<Buffer> activations, grads;
    for (const int64_t bytes : {640, 1280, 12800})
      activations.push_back(arena.Allocate(bytes, "activations"));
    if (more > 0) grads.push_back(arena.Allocate(more, "more"));
    for (; !activations.empty(); activations.pop_back())
      grads.push_back(arena.Allocate(1920, "gradients"));
    for (const Buffer& grad : grads)
      if (grad.data() != nullptr) std::memset(grad.data(), 1, static_cast<size_t>(grad.bytes()));
  }
}

BufferPlan PlanOfSteps() {
  Arena counting("device memory", Arena::Kind::kCounting, 0);
  TakeSteps(counting, 2);
  return counting.PlanRequests();
}

TEST(SegmentsTest, APlannedRunTakesItsPlanFromTheDriverAndNoMore) {
  const BufferPlan plan = PlanOfSteps();
  EXPECT_GE(plan.total_bytes, 6400 + 640 + 1280 + 12800 + 1920);
  EXPECT_LE(plan.total_bytes, 6400 + 640 + 1280 + 12800 + 3 * 1920);
  PagedMemory memory;
  {
    Arena arena("device memory", Arena::Kind::kReal, 0, &memory);
    EXPECT_TRUE(arena.WantsPlan());
    arena.BeginRun(plan);
    EXPECT_EQ(memory.used_bytes, (plan.total_bytes + 4095) / 4096 * 4096);
    const int64_t reserved = memory.used_bytes;
    {
      const Buffer held = arena.Allocate(64, "what keeps the block");
      EXPECT_EQ(arena.used_bytes(), reserved);
    }
    EXPECT_EQ(memory.used_bytes, 0);  // Nothing was left in it.
    arena.BeginRun(plan);
    TakeSteps(arena, 5);
    EXPECT_EQ(arena.peak_bytes(), reserved);
  }
  EXPECT_EQ(memory.used_bytes, 0);
}

TEST(SegmentsTest, WhatWasNotPlannedGetsMemoryToo) {
  PagedMemory memory;
  Arena arena("device memory", Arena::Kind::kReal, 0, &memory);
  const BufferPlan plan = PlanOfSteps();
  arena.BeginRun(plan);
  TakeSteps(arena, 5, 40000);
  EXPECT_EQ(arena.live_bytes(), 0);
  EXPECT_GE(arena.peak_bytes(), plan.total_bytes + 40000);
}

TEST(SegmentsTest, TheLimitIsForWhatTheDriverGives) {
  PagedMemory memory;
  Arena arena("device memory", Arena::Kind::kReal, 8192, &memory);
  Buffer buckets = arena.Charge(1, "buckets");
  const Buffer page = arena.Allocate(100, "a page");
  EXPECT_EQ(arena.used_bytes(), 4096 + 64);
  EXPECT_TRUE(arena.Allocate(3968, "the rest of the page"));
  EXPECT_EQ(MessageOfOutOfMemory(arena, 4000, "another page"),
            "device memory: 3.9 KiB for another page do not fit: 4.1 KiB of 8.0 KiB in use");
  buckets.Free();
  EXPECT_TRUE(arena.Allocate(4000, "another page"));
}

// Buffers that live at the same time lie apart, whatever their lifetimes.
TEST(BufferPlanTest, NoTwoBuffersOverlap) {
  std::mt19937 random(7);
  for (int run = 0; run < 20; ++run) {
    std::vector<Request> requests(60);
    std::vector<int64_t> times(2 * requests.size());
    std::iota(times.begin(), times.end(), 0);
    std::ranges::shuffle(times, random);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto [begin, end] = std::minmax(times[2 * i], times[2 * i + 1]);
      const auto bytes = static_cast<int64_t>(random() % 50 * 64);
      requests[i] = {.bytes = bytes, .begin = begin, .end = i % 7 == 0 ? Request::kNever : end};
    }
    const BufferPlan plan = PlanBuffers(requests, {});
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_LE(plan.offsets[i] + requests[i].bytes, plan.total_bytes);
      for (size_t j = 0; j < i; ++j) {
        const bool together =
            requests[i].begin < requests[j].end && requests[j].begin < requests[i].end;
        const bool apart = plan.offsets[i] + requests[i].bytes <= plan.offsets[j] ||
                           plan.offsets[j] + requests[j].bytes <= plan.offsets[i];
        const bool empty = requests[i].bytes == 0 || requests[j].bytes == 0;
        EXPECT_TRUE(!together || apart || empty) << i << " " << j;
      }
    }
  }
}

TEST(PreferredMemoryTest, WhereItIsRefusedTheSystemsMemoryDoesAndItIsSaidOnce) {
  int num_live = 0;
  PreferredMemory memory(std::make_unique<OneBlock>(num_live), "locked memory");
  testing::internal::CaptureStderr();
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(memory.Allocate(kMiB));
    std::memset(blocks.back(), i, kMiB);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("no more locked memory: copies will be slower bytes=1048576\n"));
  EXPECT_EQ(said.find("no more"), said.rfind("no more"));
  EXPECT_EQ(num_live, 1);
  for (void* block : blocks)
    memory.Free(block, kMiB);
  EXPECT_EQ(num_live, 0);
}

TEST(ArenaDeathTest, BuffersThatOutliveTheirArenaAreABug) {
  EXPECT_DEATH(
      {
        Buffer outlives;
        const Arena arena("memory", Arena::Kind::kCounting, 0);
        outlives = const_cast<Arena&>(arena).Allocate(64, "x");
      },
      "1 buffers outlive their arena");
}

}  // namespace
}  // namespace dsat::engine
