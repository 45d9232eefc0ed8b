// The compressed mean against the algorithm in double, and what error feedback makes of it.
#include "engine/runtime/optimizer/compressed_average.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/comm/counting_group.h"
#include "tests/engine/backend/kernels_testing.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kShare = 40;
constexpr int64_t kElems = kRanks * kShare;

Doubles Input(int rank, int round) {
  return Random(static_cast<unsigned>(100 * rank + round)).Normal(kElems);
}

// Signs of x + error times |x + error| / sqrt(n), over one share; the rest stays in error.
Doubles Compress(const double* x, double* error) {
  Doubles sums(kShare);
  for (size_t i = 0; i < sums.size(); ++i)
    sums[i] = x[i] + error[i];
  const double scale = std::sqrt(Dot(sums, sums) / kShare);
  Doubles sent(kShare);
  for (size_t i = 0; i < sums.size(); ++i) {
    sent[i] = sums[i] >= 0 ? scale : -scale;
    error[i] = sums[i] - sent[i];
  }
  return sent;
}

// All ranks' part of every round.
std::vector<Doubles> Reference(int num_rounds) {
  std::vector<Doubles> worker_errors(kRanks, Doubles(kElems, 0.0));
  Doubles owner_errors(kElems, 0.0);
  std::vector<Doubles> results;
  for (int round = 0; round < num_rounds; ++round) {
    Doubles mean(kElems, 0.0);
    for (int rank = 0; rank < kRanks; ++rank) {
      const Doubles input = TestTensor(DType::kF32, Input(rank, round)).Values();
      for (int64_t share = 0; share < kElems; share += kShare) {
        const Doubles sent = Compress(&input[share], &worker_errors[rank][share]);
        for (int64_t i = 0; i < kShare; ++i)
          mean[share + i] += sent[i] / kRanks;
      }
    }
    Doubles result;
    for (int64_t share = 0; share < kElems; share += kShare) {
      const Doubles sent = Compress(&mean[share], &owner_errors[share]);
      result.insert(result.end(), sent.begin(), sent.end());
    }
    results.push_back(result);
  }
  return results;
}

TEST(CompressedAverageTest, EveryRoundFollowsTheAlgorithmOnEveryRank) {
  constexpr int kRounds = 5;
  const std::vector<Doubles> expected = Reference(kRounds);
  RunRanks(kRanks, [&](ProcessGroup& group) {
    const auto kernels = MakeCpuKernels(1);
    Arena arena("device memory", Arena::Kind::kReal, 0);
    CompressedAverage average(kElems, group, *kernels, arena);
    for (int round = 0; round < kRounds; ++round) {
      TestTensor values(DType::kF32, Input(group.rank(), round));
      average.Run(values.get());
      ExpectClose(values, expected[static_cast<size_t>(round)], DType::kF32);
    }
  });
}

// Single rounds are rough; their sum is off by no more than the last rounds' errors.
TEST(CompressedAverageTest, SumsOverManyRoundsComeCloseToTheMean) {
  constexpr int kRounds = 400;
  Doubles mean(kElems, 0.0);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Doubles input = Input(rank, 0);
    for (size_t i = 0; i < mean.size(); ++i)
      mean[i] += input[i] / kRanks;
  }
  RunRanks(kRanks, [&](ProcessGroup& group) {
    const auto kernels = MakeCpuKernels(1);
    Arena arena("device memory", Arena::Kind::kReal, 0);
    CompressedAverage average(kElems, group, *kernels, arena);
    TestTensor sum = TestTensor::Zeros(DType::kF32, kElems);
    for (int round = 0; round < kRounds; ++round) {
      TestTensor values(DType::kF32, Input(group.rank(), 0));
      average.Run(values.get());
      kernels->Run(op::Accumulate{sum.get(), values.get()});
    }
    const Doubles sums = sum.Values();
    for (size_t i = 0; i < mean.size(); ++i)
      ASSERT_NEAR(sums[i] / kRounds, mean[i], 0.1) << i;
  });
}

TEST(CompressedAverageTest, AThirtySecondOfTheBytesOfF32IsSent) {
  constexpr int64_t kLarge = int64_t{1} << 20;
  const auto group = std::make_unique<CountingGroup>(0, 4);
  const auto kernels = MakeCountingKernels(1);
  Arena arena("device memory", Arena::Kind::kCounting, 0);
  CompressedAverage average(kLarge, *group, *kernels, arena);
  average.Run({nullptr, kLarge, DType::kF32});
  const int64_t all_reduce_bytes = 2 * kLarge * 4 * 3 / 4;
  EXPECT_NEAR(static_cast<double>(group->traffic().sent_bytes) / all_reduce_bytes, 1.0 / 32, 1e-4);
  EXPECT_EQ(group->traffic().num_collectives, 2);
}

}  // namespace
}  // namespace dsat::engine
