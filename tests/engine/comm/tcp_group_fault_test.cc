// Tests what ranks of several hosts say when peers die, stay away, or do something else; and who
// may come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/process_group.h"
#include "tests/base/error_code.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/runtime/checkpoint/child.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

void Sleep(int ms) {
  std::this_thread::sleep_for(milliseconds(ms));
}

TEST(TcpGroupFaultTest, EveryRankThatIsLeftLearnsOfTheDeath) {
  const TcpPlace place;
  const Child child([&] { (void)place.Join(2, 3, kTestTimeout).release(); });
  RunThreads(2, [&](int rank) {
    const auto group = place.Join(rank, 3, kTestTimeout);
    const Error error = ErrorOf([&] { group->MaxScalar(1); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    // The other may have learned it first, and left.
    EXPECT_THAT(error.what(),
                testing::AnyOf(HasSubstr(fmt::format("pid {}) has ended", child.pid())),
                               HasSubstr("has left the group")));
  });
}

TEST(TcpGroupFaultTest, PeerThatLeftIsNamed) {
  const TcpPlace place;
  RunThreads(2, [&](int rank) {
    const auto group = place.Join(rank, 2, kTestTimeout);
    char byte = 0;
    if (rank == 1) return group->Recv(&byte, 1, 0);
    group->Send(&byte, 1, 1);
    const Error error = ErrorOf([&] { group->Barrier(); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_EQ(
        error.what(),
        fmt::format("rank 0 in barrier: rank 1 (127.0.0.1, pid {}) has left the group", getpid()));
  });
}

TEST(TcpGroupFaultTest, AMessageToAPeerThatLeftIsRefused) {
  const TcpPlace place;
  RunThreads(2, [&](int rank) {
    const auto group = place.Join(rank, 2, kTestTimeout);
    if (rank == 1) return;
    const char byte = 0;
    const auto send = [&] {
      for (;;) {
        group->Send(&byte, 1, 1);
        Sleep(20);
      }
    };
    EXPECT_THAT(ErrorOf(send).what(), HasSubstr("has left the group"));
  });
}

TEST(TcpGroupFaultTest, PeersThatAreWaitedForByOtherMeansAreWatched) {
  const TcpPlace place;
  RunThreads(2, [&](int rank) {
    const auto group = place.Join(rank, 2, kTestTimeout);
    const auto since = ProcessGroup::Clock::now();
    group->CheckPeers("work", ProcessGroup::kAllPeers, since);
    group->Barrier();
    if (rank == 1) return;
    const Error error = ErrorOf([&] {
      for (;;) {
        group->CheckPeers("work", 1, since);
        Sleep(1);
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 in work: rank 1 (127.0.0.1, pid "));
  });
}

TEST(TcpGroupFaultTest, RankThatHangsIsNamedAfterTheTimeout) {
  const TcpPlace place;
  const Child child([&] {
    const auto group = place.Join(1, 2, kTestTimeout);
    pause();
  });
  std::vector<char> message(100'000'000);
  const auto group = place.Join(0, 2, kShortTestTimeout);
  const Error error = ErrorOf([&] { group->Send(message.data(), 100'000'000, 1); });
  EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(error.what(),
            fmt::format("rank 0 in send(100000000 bytes to rank 1): rank 1 (127.0.0.1, pid {}) did "
                        "not arrive within 3000 ms",
                        child.pid()));
}

TEST(TcpGroupFaultTest, DifferentCallsOfManyRanksAreNamedAlike) {
  const TcpPlace place;
  RunThreads(4, [&](int rank) {
    const auto group = place.Join(rank, 4, kTestTimeout);
    const CommBuffer buffer = group->Allocate(4 * 8'000'000);  // More than connections hold.
    const Error error = ErrorOf([&] {
      rank == 2 ? group->AllGather(buffer, 28) : group->AllReduce(buffer, DType::kF32, 2'000'000);
    });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("ranks issued different calls: "));
    EXPECT_THAT(error.what(), HasSubstr("all_reduce(buffer 0, f32, rows of 2000000)"));
    EXPECT_THAT(error.what(), HasSubstr("rank 2 all_gather(buffer 0, rows of 28 bytes)"));
    EXPECT_EQ(ErrorOf([&] { group->Barrier(); }).code(), ErrorCode::kUnavailable);
  });
}

TEST(TcpGroupFaultTest, AMessageOfAnotherSizeIsNamed) {
  const TcpPlace place;
  RunThreads(2, [&](int rank) {
    const auto group = place.Join(rank, 2, kTestTimeout);
    std::vector<char> sent(30'000'000), received(30'000'000);
    const Error error = ErrorOf(
        [&] { group->Exchange(sent.data(), received.data(), 30'000'000 - rank, 1 - rank); });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_EQ(
        error.what(),
        fmt::format("ranks issued different calls: rank {} exchange({} bytes with rank {}), "
                    "rank {} exchange({} bytes with rank {})",
                    1 - rank, 30'000'000 - (1 - rank), rank, rank, 30'000'000 - rank, 1 - rank));
  });
}

TEST(TcpGroupFaultTest, RanksThatDoNotComeAreNamed) {
  const TcpPlace place;
  RunThreads(2, [&](int rank) {
    const Error error = ErrorOf([&] { (void)place.Join(rank, 4, kShortTestTimeout); });
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_STREQ(
        error.what(),
        "rank 0 in join: rank 2 (not joined), rank 3 (not joined) did not arrive within 3000 "
        "ms");
  });
}

TEST(TcpGroupFaultTest, RankZeroThatDoesNotComeIsNamedWithItsPlace) {
  TcpGroupArgs args = TcpPlace().ArgsOf(1, 2, milliseconds(100));
  const Error error = ErrorOf([&] { (void)MakeTcpGroup(args); });
  EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(error.what(), fmt::format("rank 1 in join: rank 0 did not arrive within 100 ms "
                                      "(127.0.0.1:{}: Connection refused)",
                                      args.master_port));
}

TEST(TcpGroupFaultTest, RankThatEndsWhileOthersAreAwaitedIsNamed) {
  const TcpPlace place;
  Child child([&] { (void)place.Join(1, 3, kTestTimeout); });
  std::thread killer([&] {
    Sleep(100);
    child.Kill();
  });
  // Killed before or after it came.
  const Error error = ErrorOf([&] { (void)place.Join(0, 3, milliseconds(1000)); });
  killer.join();
  EXPECT_THAT(error.what(), HasSubstr("rank 0 in join: rank 1 ("));
  EXPECT_THAT(error.what(), HasSubstr("rank 2 (not joined)"));
}

// A connection to where rank 0 listens, of one who says `words`.
UniqueFd Stranger(const TcpPlace& place, const std::string& words) {
  const SocketAddress address = Resolve(place.host(), place.port()).front();
  UniqueFd fd = ConnectTo(address, ProcessGroup::Clock::now() + kTestTimeout);
  EXPECT_TRUE(fd);
  EXPECT_EQ(send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL), std::ssize(words));
  return fd;
}

TEST(TcpGroupFaultTest, StrangersDisturbNobody) {
  const TcpPlace place;
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 50; ++i) {
    for (const char* words : {"", "GET / HTTP/1.1\r\nHost: somewhere or other\r\n\r\n", "dsatgrp1"})
      strangers.push_back(Stranger(place, words));
    (void)Stranger(place, "gone");
    (void)Stranger(place, "dsatgrp1" + std::string(1000, '\x01'));
  }
  RunThreads(3, [&](int rank) { EXPECT_EQ(place.Join(rank, 3, kTestTimeout)->SumScalar(1), 3); });
}

TEST(TcpGroupFaultTest, WhoDoesNotBelongIsToldSoAndTheOthersGoOn) {
  const TcpPlace place;
  const auto refused = [&](int rank, int size, const std::string& key) {
    TcpGroupArgs args = place.ArgsOf(rank, size, kTestTimeout);
    args.key = key;
    return ErrorOf([&] { (void)MakeTcpGroup(args); });
  };
  std::atomic<bool> is_time = false;
  RunThreads(3, [&](int rank) {
    if (rank == 2) {
      const Error key = refused(1, 2, "guessed");
      EXPECT_EQ(key.code(), ErrorCode::kUnauthenticated);
      EXPECT_STREQ(key.what(), "rank 1 joined the process group with a wrong key");
      const Error size = refused(1, 3, "secret");
      EXPECT_EQ(size.code(), ErrorCode::kInternal);
      EXPECT_STREQ(size.what(), "rank 1 joined a group of 3 ranks, others a group of 2");
      is_time = true;
      return;
    }
    while (rank == 1 && !is_time)  // The group must not be complete before.
      Sleep(1);
    EXPECT_EQ(place.Join(rank, 2, kTestTimeout)->SumScalar(1), 2);
  });
}

TEST(TcpGroupFaultTest, ARankCannotJoinTwice) {
  const TcpPlace place;
  std::atomic<int> num_refused = 0;
  RunThreads(4, [&](int thread) {
    // Two come as rank 1; the third rank when one of them was sent away.
    const int rank = std::min(thread, 1) + (thread == 3 ? 1 : 0);
    while (thread == 3 && num_refused == 0)
      Sleep(1);
    try {
      EXPECT_EQ(place.Join(rank, 3, kTestTimeout)->SumScalar(1), 3);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      EXPECT_EQ(error.what(),
                fmt::format("rank 1 has already joined the group, as rank 1 (127.0.0.1, pid {})",
                            getpid()));
      ++num_refused;
    }
  });
  EXPECT_EQ(num_refused, 1);
}

TEST(TcpGroupFaultTest, APortThatIsTakenIsNamed) {
  const TcpPlace place;
  TcpGroupArgs args = place.ArgsOf(0, 2, kTestTimeout);
  args.listening_fd = -1;
  const Error error = ErrorOf([&] { (void)MakeTcpGroup(args); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error.what(),
            fmt::format("listening at 127.0.0.1:{}: Address already in use", place.port()));
}

TEST(TcpGroupFaultTest, AWrongListeningSocketIsAnError) {
  TcpGroupArgs args = TcpPlace().ArgsOf(0, 2, kTestTimeout);
  args.listening_fd = 999;
  EXPECT_THAT(ErrorOf([&] { (void)MakeTcpGroup(args); }).what(), HasSubstr("fd 999"));
}

}  // namespace
}  // namespace dsat::engine
