// Tests what a launcher tells a rank, and where the rank then meets the others.
#include "engine/runtime/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "tests/base/error_code.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

using testing::HasSubstr;

// The environment with these variables of a launcher, and no others.
RankEnvironment Read(const std::map<std::string, std::string>& variables) {
  for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                           "MASTER_PORT", "DSAT_TOKEN", "DSAT_GROUP_FD", "DSAT_NUM_THREADS"}) {
    const auto found = variables.find(name);
    found == variables.end() ? unsetenv(name) : setenv(name, found->second.c_str(), 1);
  }
  return ReadRankEnvironment();
}

// An address that no other test uses, so that a port which was free stays free.
std::string OwnLoopback() {
  return fmt::format("127.{}.{}.{}", 100 + (getpid() >> 16) % 100, (getpid() >> 8) % 256,
                     1 + getpid() % 254);
}

TEST(RankEnvironmentTest, RanksOfTwoHostsMeetAtTheMaster) {
  const std::string host = OwnLoopback();
  const int port = TcpPlace(host).port();
  std::vector<RankEnvironment> environments;
  for (int rank = 0; rank < 4; ++rank) {
    environments.push_back(Read({{"RANK", std::to_string(rank)},
                                 {"LOCAL_RANK", std::to_string(rank % 2)},
                                 {"WORLD_SIZE", "4"},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", host},
                                 {"MASTER_PORT", std::to_string(port)},
                                 {"DSAT_TOKEN", "0123456789abcdef0123456789abcdef"}}));
  }
  RunThreads(4, [&](int rank) {
    for (int again = 0; again < 3; ++again) {
      const auto group = JoinGroup(environments[static_cast<size_t>(rank)]);
      EXPECT_EQ(group->SumScalar(1 << group->rank()), 0b1111);
    }
  });
}

TEST(RankEnvironmentTest, WhatIsMissingToMeetOtherHostsIsNamed) {
  std::map<std::string, std::string> variables{{"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}};
  const auto error = [&] { return ErrorOf([&] { (void)JoinGroup(Read(variables)); }); };
  EXPECT_EQ(error().code(), ErrorCode::kInvalidArgument);
  EXPECT_STREQ(
      error().what(),
      "MASTER_ADDR is not set; expected where rank 0 is, as 2 of 4 ranks are on this host");
  variables["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_THAT(error().what(), HasSubstr("MASTER_PORT is not set; expected where rank 0 is"));
  for (const char* port : {"0", "65536", "-1", "ssh", "", "29500 "}) {
    variables["MASTER_PORT"] = port;
    EXPECT_EQ(error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error().what(),
              fmt::format("MASTER_PORT is \"{}\"; expected a whole number from 1 to "
                          "65535",
                          port));
  }
}

TEST(RankEnvironmentTest, RanksOfOneHostNeedNoMaster) {
  EXPECT_EQ(JoinGroup(Read({{"MASTER_PORT", "of no interest"}}))->size(), 1);
  const RankEnvironment two = Read({{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_THAT(ErrorOf([&] { (void)JoinGroup(two); }).what(),
              HasSubstr("DSAT_GROUP_FD is not set; expected the memory file of 2 ranks"));
}

}  // namespace
}  // namespace dsat::engine
