// Tests what a process group says when peers die, stay away, or do something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/comm/run_together.h"
#include "engine/comm/shared_file.h"
#include "tests/base/error_code.h"
#include "tests/base/file_size_limit.h"
#include "tests/engine/runtime/checkpoint/child.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

void ExpectEnded(const Error& error, int rank, pid_t pid) {
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  const char* host = MeetingPlace::IsTcp() ? "127.0.0.1, " : "";
  EXPECT_THAT(error.what(),
              HasSubstr(fmt::format("rank {} ({}pid {}) has ended", rank, host, pid)));
}

// Runs round(group) on both ranks, rank 1 in a process that is killed after some rounds.
void RunUntilKilled(const std::function<void(ProcessGroup&)>& round, int num_rounds) {
  const MeetingPlace place;
  const Child child([&] {
    const auto group = place.Join(1, 2);
    for (;;)
      round(*group);
  });
  const auto group = place.Join(0, 2);
  const Error error = ErrorOf([&] {
    for (int i = 0;; ++i) {
      round(*group);
      if (i == num_rounds) child.Kill();
    }
  });
  ExpectEnded(error, 1, child.pid());
  EXPECT_THAT(ErrorOf([&] { group->Barrier(); }).what(),
              HasSubstr("rank 0 in barrier: the process group has failed before"));
}

TEST(ProcessGroupFaultTest, PeerKilledBetweenOrInCollectivesIsNamed) {
  RunUntilKilled([](ProcessGroup& group) { group.Barrier(); }, 10);
  CommBuffer buffer;
  const auto reduce = [&](ProcessGroup& group) {
    if (buffer.data == nullptr) buffer = group.Allocate(2 * 8'000'000);
    group.AllReduce(buffer, DType::kBF16, 4'000'000);
  };
  RunUntilKilled(reduce, 3);
}

TEST(ProcessGroupFaultTest, PeerKilledInTheMiddleOfMessagesIsNamed) {
  std::vector<char> sent(5'000'000), received(5'000'000);
  RunUntilKilled(
      [&](ProcessGroup& group) {
        group.Exchange(sent.data(), received.data(), 5'000'000, 1 - group.rank());
      },
      3);
}

TEST(ProcessGroupFaultTest, PeerKilledWhileARankSendsOrReceivesIsNamed) {
  std::vector<char> message(30'000'000);
  for (const bool sends : {false, true}) {
    const MeetingPlace place;
    const Child child([&] {
      const auto group = place.Join(1, 2);
      const char byte = 7;
      group->Send(&byte, 1, 0);
      pause();  // Receives nothing.
    });
    const auto group = place.Join(0, 2);
    group->Recv(message.data(), 1, 1);
    EXPECT_EQ(message[0], 7);
    std::thread killer([&] {
      std::this_thread::sleep_for(milliseconds(50));
      child.Kill();
    });
    const Error error = ErrorOf([&] {
      if (!sends) return group->Recv(message.data(), 8, 1);
      group->Send(message.data(), 30'000'000, 1);  // A mailbox of shared memory has room for one.
      group->Send(message.data(), 30'000'000, 1);
    });
    killer.join();
    ExpectEnded(error, 1, child.pid());
    EXPECT_THAT(error.what(), HasSubstr(sends ? "rank 0 in send(30000000 bytes to rank 1)"
                                              : "rank 0 in recv(8 bytes from rank 1)"));
    EXPECT_EQ(ErrorOf([&] { group->Send(message.data(), 1, 1); }).code(), ErrorCode::kUnavailable);
  }
}

TEST(ProcessGroupFaultTest, PeerThatEndedIsNamedLongBeforeTheTimeout) {
  const UniqueFd file = MakeMemoryFile();
  const Child child([&] { (void)MakeShmGroup(file.get(), 1, 2, kTestTimeout).release(); });
  const auto group = MakeShmGroup(file.get(), 0, 2, kTestTimeout);
  const Error error = ErrorOf([&] { group->Barrier(); });
  ExpectEnded(error, 1, child.pid());
  EXPECT_THAT(error.what(), HasSubstr("rank 0 in barrier"));
}

TEST(ProcessGroupFaultTest, PeerThatEndedAndWasReapedIsNamed) {
  const UniqueFd file = MakeMemoryFile();
  Child child([&] { (void)MakeShmGroup(file.get(), 1, 2, kTestTimeout).release(); });
  const auto group = MakeShmGroup(file.get(), 0, 2, kTestTimeout);
  child.Reap();
  ExpectEnded(ErrorOf([&] { group->SumScalar(1); }), 1, child.pid());
}

TEST(ProcessGroupFaultTest, EveryRankThatIsLeftLearnsOfTheDeath) {
  const UniqueFd file = MakeMemoryFile();
  const Child child([&] { (void)MakeShmGroup(file.get(), 2, 3, kTestTimeout).release(); });
  RunThreads(2, [&](int rank) {
    const auto group = MakeShmGroup(file.get(), rank, 3, kTestTimeout);
    ExpectEnded(ErrorOf([&] { group->MaxScalar(1); }), 2, child.pid());
  });
}

TEST(ProcessGroupFaultTest, ARankThatComesAfterTheFailureLearnsItsCause) {
  const UniqueFd file = MakeMemoryFile();
  const Child child([&] { (void)MakeShmGroup(file.get(), 2, 3, kTestTimeout).release(); });
  std::string first;
  std::latch failed(1);
  RunThreads(2, [&](int rank) {
    const auto group = MakeShmGroup(file.get(), rank, 3, kTestTimeout);
    if (rank == 1) {
      first = ErrorOf([&] { group->Barrier(); }).what();
      failed.count_down();
      return;
    }
    failed.wait();
    const Error error = ErrorOf([&] { group->SumScalar(1); });
    ExpectEnded(error, 2, child.pid());
    EXPECT_EQ(error.what(),
              "rank 0 in sum of a number: the process group has failed before: " + first);
  });
}

TEST(ProcessGroupFaultTest, ARankThatDiesInABarrierIsNamed) {
  const UniqueFd file = MakeMemoryFile();
  const Child child([&] { MakeShmGroup(file.get(), 2, 3, kTestTimeout)->Barrier(); });
  std::latch killed(1);
  RunThreads(2, [&](int rank) {
    const auto group = MakeShmGroup(file.get(), rank, 3, kTestTimeout);
    if (rank == 0) {
      std::this_thread::sleep_for(milliseconds(30));
      child.Kill();
      killed.count_down();
    }
    killed.wait();
    // If it had arrived, it is missing in the second one.
    const Error error = ErrorOf([&] {
      group->Barrier();
      group->Barrier();
    });
    ExpectEnded(error, 2, child.pid());
  });
}

TEST(ProcessGroupFaultTest, AFailureOfARanksOwnWorkOutweighsThatOfTheGroup) {
  const UniqueFd file = MakeMemoryFile();
  const Child child([&] { (void)MakeShmGroup(file.get(), 1, 2, kTestTimeout).release(); });
  const auto group = MakeShmGroup(file.get(), 0, 2, kTestTimeout);
  const auto fail = [] { Throw(ErrorCode::kResourceExhausted, "the disk is full"); };
  EXPECT_STREQ(ErrorOf([&] { RunTogether(*group, "saving", fail); }).what(), "the disk is full");
  ExpectEnded(ErrorOf([&] { RunTogether(*group, "saving", [] {}); }), 1, child.pid());
}

// Rank 0 waits for rank 1, which leaves because rank 2 has ended.
TEST(ProcessGroupFaultTest, ARankThatLeavesBecauseOfAFailureIsNotTheCause) {
  const UniqueFd file = MakeMemoryFile();
  const Child child([&] { (void)MakeShmGroup(file.get(), 2, 3, kTestTimeout).release(); });
  RunThreads(2, [&](int rank) {
    const auto group = MakeShmGroup(file.get(), rank, 3, kTestTimeout);
    char byte = 0;
    const Error error = ErrorOf([&] {
      if (rank == 0) group->Recv(&byte, 1, 1);
      group->Recv(&byte, 1, 2);
    });
    ExpectEnded(error, 2, child.pid());
  });
}

TEST(ProcessGroupFaultTest, PeerKilledInASubgroupIsNamed) {
  const MeetingPlace place;
  const std::vector<int> colors{0, 0};
  const Child child([&] {
    const auto group = place.Join(1, 2);
    const auto subgroup = group->Split(colors);
    pause();
  });
  const auto group = place.Join(0, 2);
  const auto subgroup = group->Split(colors);
  child.Kill();
  ExpectEnded(ErrorOf([&] { subgroup->Barrier(); }), 1, child.pid());
}

TEST(ProcessGroupFaultTest, AMessageThatDoesNotComeIsNamedAfterTheTimeout) {
  std::latch done(1);
  RunRanks(
      2,
      [&](ProcessGroup& group) {
        char byte = 0;
        if (group.rank() == 1) return done.wait();
        const Error error = ErrorOf([&] { group.Recv(&byte, 1, 1); });
        done.count_down();
        EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
        EXPECT_THAT(error.what(), HasSubstr("rank 0 in recv(1 bytes from rank 1): rank 1 (pid"));
        EXPECT_THAT(error.what(), HasSubstr("did not arrive within 3000 ms"));
      },
      kShortTestTimeout);
}

TEST(ProcessGroupFaultTest, AMessageOfAnotherSizeIsNamed) {
  RunRanks(2, [](ProcessGroup& group) {
    char data[20] = {};
    if (group.rank() == 0) {
      group.Send(data, 20, 1);
      EXPECT_EQ(ErrorOf([&] { group.Barrier(); }).code(), ErrorCode::kUnavailable);
      return;
    }
    const Error error = ErrorOf([&] { group.Recv(data, 19, 0); });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_STREQ(error.what(),
                 "ranks issued different calls: rank 0 send(20 bytes to rank 1), rank 1 recv(19 "
                 "bytes from rank 0)");
  });
}

TEST(ProcessGroupFaultTest, AMessageLargerThanMemoryIsRefusedAndTheGroupGoesOn) {
  RunRanks(2, [](ProcessGroup& group) {
    char byte = 3;
    if (group.rank() == 0) {
      const Error error = ErrorOf([&] { group.Send(&byte, int64_t{1} << 50, 1); });
      EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
      EXPECT_THAT(error.what(), HasSubstr("a message of 1125899906842624 bytes"));
      group.Send(&byte, 1, 1);
    } else {
      group.Recv(&byte, 1, 0);
    }
  });
}

TEST(ProcessGroupFaultTest, AbsentRanksAreNamedAfterTheTimeout) {
  const UniqueFd file = MakeMemoryFile();
  const Error error = ErrorOf([&] { (void)MakeShmGroup(file.get(), 1, 3, milliseconds(100)); });
  EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(error.what(), HasSubstr("in join: rank 0 (not joined), rank 2 (not joined) did not "
                                      "arrive within 100 ms"));
}

TEST(ProcessGroupFaultTest, RankThatHangsIsNamedAfterTheTimeout) {
  const UniqueFd file = MakeMemoryFile();
  const Child child([&] {
    (void)MakeShmGroup(file.get(), 1, 2, kTestTimeout).release();
    pause();
  });
  const auto group = MakeShmGroup(file.get(), 0, 2, kShortTestTimeout);
  const Error error = ErrorOf([&] { group->Barrier(); });
  EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank 1 (pid {}) did not arrive", child.pid())));
}

TEST(ProcessGroupFaultTest, RankWhoseGroupObjectEndedIsNamed) {
  const UniqueFd file = MakeMemoryFile();
  RunThreads(3, [&](int rank) {
    const auto group = MakeShmGroup(file.get(), rank, 3, kTestTimeout);
    if (rank == 1) return;
    const Error error = ErrorOf([&] { group->Barrier(); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("has left the group"));
  });
}

// Both ranks get the error; `first` and `second` are how the calls are told.
void ExpectMismatch(const std::function<void(ProcessGroup&, const CommBuffer&)>& of_rank_0,
                    const std::function<void(ProcessGroup&, const CommBuffer&)>& of_rank_1,
                    const std::string& message) {
  RunRanks(2, [&](ProcessGroup& group) {
    (void)group.Allocate(800);
    const CommBuffer buffer = group.Allocate(800);
    const auto& call = group.rank() == 0 ? of_rank_0 : of_rank_1;
    const Error error = ErrorOf([&] { call(group, buffer); });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("ranks issued different calls: " + message));
    EXPECT_EQ(ErrorOf([&] { group.Barrier(); }).code(), ErrorCode::kUnavailable);
  });
}

TEST(ProcessGroupFaultTest, DifferentCallsAreNamedInsteadOfAHang) {
  ExpectMismatch([](ProcessGroup& g, const CommBuffer&) { g.Allocate(4096); },
                 [](ProcessGroup& g, const CommBuffer&) { g.Allocate(8192); },
                 "rank 0 allocate(4096 bytes), rank 1 allocate(8192 bytes)");
  ExpectMismatch(
      [](ProcessGroup& g, const CommBuffer& b) { g.AllReduce(b, DType::kF32, 100); },
      [](ProcessGroup& g, const CommBuffer& b) { g.ReduceScatter(b, DType::kF32, 100); },
      "rank 0 all_reduce(buffer 1, f32, rows of 100), rank 1 reduce_scatter(buffer 1, f32, rows "
      "of 100)");
  ExpectMismatch([](ProcessGroup& g, const CommBuffer& b) { g.AllReduce(b, DType::kF32, 100); },
                 [](ProcessGroup& g, const CommBuffer& b) { g.AllReduce(b, DType::kF32, 99); },
                 "rank 0 all_reduce(buffer 1, f32, rows of 100), rank 1 all_reduce(buffer 1, f32, "
                 "rows of 99)");
  ExpectMismatch([](ProcessGroup& g, const CommBuffer& b) { g.AllReduce(b, DType::kF32, 100); },
                 [](ProcessGroup& g, const CommBuffer& b) { g.AllReduce(b, DType::kBF16, 100); },
                 "rank 0 all_reduce(buffer 1, f32, rows of 100), rank 1 all_reduce(buffer 1, bf16");
  ExpectMismatch([](ProcessGroup& g, const CommBuffer&) { g.SumScalar(1); },
                 [](ProcessGroup& g, const CommBuffer&) { g.MaxScalar(1); },
                 "rank 0 sum of a number, rank 1 maximum of a number");
  ExpectMismatch([](ProcessGroup& g, const CommBuffer& b) { g.Broadcast(b, DType::kF16, 9, 0); },
                 [](ProcessGroup& g, const CommBuffer& b) { g.Broadcast(b, DType::kF16, 9, 1); },
                 "rank 0 broadcast(buffer 1, f16, row 0 of 9), rank 1 broadcast(buffer 1, f16, row "
                 "1 of 9)");
  ExpectMismatch([](ProcessGroup& g, const CommBuffer& b) { g.AllToAll(b, 8); },
                 [](ProcessGroup& g, const CommBuffer& b) { g.AllGather(b, 8); },
                 "rank 0 all_to_all(buffer 1, rows of 8 bytes), rank 1 all_gather(buffer 1, rows "
                 "of 8 bytes)");
  ExpectMismatch(
      [](ProcessGroup& g, const CommBuffer&) {
        g.Split(std::vector<int>{0, 0});
      },
      [](ProcessGroup& g, const CommBuffer&) {
        g.Split(std::vector<int>{0, 1});
      },
      "rank 0 split(colors of hash ");
}

TEST(ProcessGroupFaultTest, RanksThatDisagreeAboutTheSizeAreRefused) {
  const UniqueFd file = MakeMemoryFile();
  RunThreads(2, [&](int rank) {
    if (rank == 1) {
      EXPECT_EQ(ErrorOf([&] { (void)MakeShmGroup(file.get(), 0, 2, milliseconds(500)); }).code(),
                ErrorCode::kDeadlineExceeded);
      return;
    }
    for (int32_t size = 0; size == 0; std::this_thread::yield())  // The other has not come yet.
      pread(file.get(), &size, sizeof(size), SharedFile::HeadOffset());
    const Error error = ErrorOf([&] { (void)MakeShmGroup(file.get(), 1, 3, kTestTimeout); });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_STREQ(error.what(), "rank 1 joined a group of 3 ranks, others a group of 2");
  });
}

TEST(ProcessGroupFaultTest, OneRankCannotJoinTwice) {
  const UniqueFd file = MakeMemoryFile();
  RunThreads(2, [&](int rank) {
    const auto group = MakeShmGroup(file.get(), rank, 2, kTestTimeout);
    if (rank == 0) {
      const Error error = ErrorOf([&] { (void)MakeShmGroup(file.get(), 0, 2, kTestTimeout); });
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has already joined the group"));
    }
    group->Barrier();
  });
}

TEST(ProcessGroupFaultTest, FailedGroupTakesNoNewMembers) {
  const UniqueFd file = MakeMemoryFile();
  EXPECT_EQ(ErrorOf([&] { (void)MakeShmGroup(file.get(), 0, 2, milliseconds(50)); }).code(),
            ErrorCode::kDeadlineExceeded);
  const Error error = ErrorOf([&] { (void)MakeShmGroup(file.get(), 1, 2, kTestTimeout); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_STREQ(error.what(),
               "rank 1 joined a process group that has failed: rank 0 in join: rank 1 (not joined) "
               "did not arrive within 50 ms");
}

TEST(ProcessGroupFaultTest, TooLargeABufferIsRefusedAndTheGroupGoesOn) {
  RunRanks(2, [](ProcessGroup& group) {
    const Error error = ErrorOf([&] { (void)group.Allocate(int64_t{1} << 50); });
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("1125899906842624 bytes on each of 2 ranks"));
    const CommBuffer buffer = group.Allocate(2 * 4);
    *static_cast<float*>(buffer.data) = 1;
    group.AllReduce(buffer, DType::kF32, 1);
    EXPECT_EQ(*static_cast<float*>(buffer.data), 2);
  });
}

TEST(ProcessGroupFaultTest, ALimitOfFileSizesIsNamedAndNoLackOfMemory) {
  RunRanks(2, [](ProcessGroup& group) {
    std::optional<FileSizeLimit> limit;
    if (group.rank() == 0) limit.emplace(1 << 20);
    const Error error = ErrorOf([&] { (void)group.Allocate(1 << 20); });
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), HasSubstr("1048576 bytes on each of 2 ranks: more than the limit of "
                                        "file sizes (ulimit -f)"));
    group.Barrier();  // Rank 0 has the limit until here.
  });
  const UniqueFd file = MakeMemoryFile();
  const FileSizeLimit limit(4096);
  EXPECT_THAT(ErrorOf([&] { (void)MakeShmGroup(file.get(), 0, 2, kTestTimeout); }).what(),
              HasSubstr("memory file: more than the limit of file sizes"));
}

TEST(ProcessGroupFaultTest, WrongFileIsAnError) {
  EXPECT_THAT(ErrorOf([] { (void)MakeShmGroup(-1, 0, 2, kTestTimeout); }).what(),
              HasSubstr("fd -1"));
}

TEST(ProcessGroupFaultTest, MemoryGoesBackWithTheGroup) {
  const UniqueFd file = MakeMemoryFile();
  const auto bytes_of_file = [&] {
    struct stat info {};
    fstat(file.get(), &info);
    return info.st_blocks * 512;
  };
  RunThreads(2, [&](int rank) {
    const auto group = MakeShmGroup(file.get(), rank, 2, kTestTimeout);
    (void)group->Allocate(1 << 20);
    if (rank == 0) {
      EXPECT_GE(bytes_of_file(), 2 << 20);
    }
    group->Barrier();
  });
  EXPECT_LT(bytes_of_file(), 1 << 20);
}

}  // namespace
}  // namespace dsat::engine
