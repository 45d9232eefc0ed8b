// Tests the folder of an attempt on a host that shares the runner's folder or does not.
#include "searcher/processes/remote_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "tests/base/error_code.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

SuperviseOrder OrderIn(const std::string& dir) {
  SuperviseOrder order;
  order.work_dir = dir;
  order.files = {{dir + "/task.json", "{\"a\": 1}"}};
  RankCommand& command = order.ranks.emplace_back();
  command.argv = {"/bin/trial", dir + "/task.json", dir + "x"};
  command.log_path = dir + "/rank0.log";
  command.work_dir = "/models";
  return order;
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path) << content;
}

TEST(RemoteFolderTest, AFolderWithTheRunnersFilesIsUsedAsItIs) {
  TempFolder folder;
  const SuperviseOrder order = OrderIn(folder.path());
  Write(folder / "task.json", "{\"a\": 1}");
  {
    const RemoteFolder here(order);
    EXPECT_EQ(here.path(), folder.path());
    EXPECT_THAT(here.Moved(order.ranks[0]).argv,
                ElementsAre("/bin/trial", folder / "task.json", folder.path() + "x"));
    Write(folder / "rank0.log", "text");
    EXPECT_THAT(here.Logs(order.ranks), IsEmpty()) << "the runner sees it itself";
  }
  EXPECT_TRUE(fs::exists(folder / "task.json"));
}

TEST(RemoteFolderTest, WithoutThemATemporaryFolderTakesItsPlaceAndTheLogsGoBack) {
  TempFolder folder;
  const SuperviseOrder order = OrderIn(folder / "not-here");
  std::string path;
  {
    const RemoteFolder here(order);
    path = here.path();
    EXPECT_NE(path, order.work_dir);
    EXPECT_EQ(ReadFile(path + "/task.json"), "{\"a\": 1}");
    const RankCommand moved = here.Moved(order.ranks[0]);
    EXPECT_THAT(moved.argv, ElementsAre("/bin/trial", path + "/task.json", order.ranks[0].argv[2]));
    EXPECT_EQ(moved.log_path, path + "/rank0.log");
    EXPECT_EQ(moved.work_dir, "/models");
    Write(moved.log_path, std::string(300'000, 'x') + "the end");
    const auto logs = here.Logs(order.ranks);
    ASSERT_THAT(logs, ElementsAre(Pair(order.work_dir + "/rank0.log", HasSubstr("xthe end"))));
    EXPECT_EQ(logs.begin()->second.size(), 256u * 1024);
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::exists(order.work_dir));
}

TEST(RemoteFolderTest, AFolderOfTheSameNameWithOtherFilesIsNotTheRunners) {
  TempFolder folder;
  Write(folder / "task.json", "of yesterday");
  const RemoteFolder here(OrderIn(folder.path()));
  EXPECT_NE(here.path(), folder.path());
  EXPECT_EQ(ReadFile(folder / "task.json"), "of yesterday");
}

TEST(RemoteFolderTest, RanksThatLeaveFilesForTheRunnerNeedItsFolder) {
  TempFolder folder;
  SuperviseOrder order = OrderIn(folder / "not-here");
  order.ranks[0].shares_folder = true;
  EXPECT_THAT(RefusalOf([&] { const RemoteFolder here(order); }, ErrorCode::kFailedPrecondition),
              testing::AllOf(HasSubstr("not-here"), HasSubstr("a folder that all hosts share")));
}

}  // namespace
}  // namespace dsat
