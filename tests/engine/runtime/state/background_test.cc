// The communication thread: order, waiting, errors.
#include "engine/runtime/state/background.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace dsat::engine {
namespace {

TEST(BackgroundTest, TasksRunInOrderAndWaitSeesTheirWork) {
  Background background;
  std::vector<int> done;
  int64_t last = 0;
  for (int i = 0; i < 100; ++i)
    last = background.Submit([&done, i] { done.push_back(i); });
  background.Wait(last);
  ASSERT_EQ(done.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(done));
}

TEST(BackgroundTest, AnErrorReachesTheWaiterAndStopsTheRest) {
  Background background;
  bool ran = false;
  const int64_t good = background.Submit([] {});
  background.Wait(good);
  const int64_t bad = background.Submit([] { Throw(ErrorCode::kUnavailable, "rank 1 has ended"); });
  const int64_t after = background.Submit([&ran] { ran = true; });
  background.Wait(good);
  EXPECT_THROW(background.Wait(bad), Error);
  EXPECT_THROW(background.Wait(after), Error);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace dsat::engine
