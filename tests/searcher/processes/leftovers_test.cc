// Tests what is removed of killed compilations of PyTorch's extensions.
#include "searcher/processes/leftovers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

TEST(LeftoversTest, RemovesOnlyLocksThatNobodyHolds) {
  TempFolder folder;
  std::filesystem::create_directories(folder / "py311/adam");
  std::filesystem::create_directories(folder / "py311/aio");
  std::ofstream(folder / "py311/adam/lock");
  std::ofstream(folder / "py311/adam/lock.cpp");
  const std::ofstream held(folder / "py311/aio/lock");
  EXPECT_EQ(RemoveStaleLocks(folder.path()), 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "py311/adam/lock"));
  EXPECT_TRUE(std::filesystem::exists(folder / "py311/adam/lock.cpp"));
  EXPECT_TRUE(std::filesystem::exists(folder / "py311/aio/lock"));
  EXPECT_EQ(RemoveStaleLocks(folder / "none"), 0);
}

}  // namespace
}  // namespace dsat
