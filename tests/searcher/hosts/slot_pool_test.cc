// Placing and counting trials, and what a lost host changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "searcher/hosts/slots.h"

namespace dsat {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<LaunchHost> TwoHosts() {
  std::vector<LaunchHost> hosts(2);
  hosts[0].slots = {0, 1};
  hosts[1].slots = {0, 1};
  return hosts;
}

TEST(SlotPoolTest, EachTrialHasItsOwnSlots) {
  SlotPool pool = SlotPool::On(TwoHosts(), 2, true);
  const std::vector<Slot> first = pool.Take(0);
  EXPECT_THAT(first, ElementsAre(Slot{0, 0}, Slot{0, 1}));
  EXPECT_THAT(pool.Take(0), ElementsAre(Slot{1, 0}, Slot{1, 1}));
  EXPECT_FALSE(pool.HasFree(0));
  pool.Return(first, true);
  EXPECT_EQ(pool.Take(0), first);
}

TEST(SlotPoolTest, TrialsAreCountedWhereDevicesAreUnknownOrTooFew) {
  for (const auto& [num_ranks, are_known, most] :
       {std::tuple(2, false, 2), {3, false, 1}, {5, true, 1}}) {
    SlotPool pool = SlotPool::On(TwoHosts(), num_ranks, are_known);
    for (int trial = 0; trial < most; ++trial) {
      ASSERT_TRUE(pool.HasFree(0));
      EXPECT_THAT(pool.Take(0), IsEmpty());
    }
    EXPECT_FALSE(pool.HasFree(0)) << num_ranks;
    pool.Return({}, true);
    EXPECT_TRUE(pool.HasFree(0)) << num_ranks;
  }
}

TEST(SlotPoolTest, ALostHostRestsLongerEachTimeAndThenForGood) {
  SlotPool pool = SlotPool::On(TwoHosts(), 2, true);
  double now_s = 100;
  for (const double pause_s : {10.0, 20.0, 40.0, 80.0, 160.0}) {
    const std::vector<Slot> slots = pool.Take(now_s);
    ASSERT_EQ(slots[0].host, 0);
    pool.Return(slots, false);
    EXPECT_EQ(pool.Lose(0, now_s), pause_s);
    const std::vector<Slot> other = pool.Take(now_s);
    EXPECT_EQ(other[0].host, 1);
    EXPECT_FALSE(pool.HasFree(now_s + pause_s - 1));
    now_s += pause_s;
    EXPECT_TRUE(pool.HasFree(now_s));
    pool.Return(other, true);
  }
  EXPECT_EQ(pool.Lose(0, now_s), std::numeric_limits<double>::infinity());
  EXPECT_EQ(pool.Take(now_s + 1e9)[0].host, 1);
  EXPECT_TRUE(pool.IsEnough());
}

TEST(SlotPoolTest, OneOutageCountsOnceForAllItsTrials) {
  SlotPool pool = SlotPool::On(TwoHosts(), 1, true);
  EXPECT_EQ(pool.Lose(0, 0), 10);
  for (int trial = 0; trial < 8; ++trial)
    EXPECT_EQ(pool.Lose(0, 1), std::nullopt);
  EXPECT_EQ(pool.Lose(0, 10), 20);
}

TEST(SlotPoolTest, AHostThatAnswersAgainIsNotLost) {
  SlotPool pool = SlotPool::On(TwoHosts(), 2, true);
  pool.Lose(0, 0);
  pool.Return(pool.Take(10), false);
  EXPECT_EQ(pool.Lose(0, 20), 20);
  pool.Return(pool.Take(40), true);
  EXPECT_EQ(pool.Lose(0, 50), 10);
}

TEST(SlotPoolTest, TooFewHostsAreNotEnough) {
  SlotPool pool = SlotPool::On(TwoHosts(), 4, true);
  for (double now_s = 0; now_s < 6000; now_s += 1000) {
    EXPECT_TRUE(pool.IsEnough());
    pool.Lose(1, now_s);
  }
  EXPECT_FALSE(pool.IsEnough());
}

}  // namespace
}  // namespace dsat
