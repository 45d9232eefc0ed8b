// Asynchronous files: contents, options, errors, what is left behind.
#include "engine/io/async_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/base/error_code.h"
#include "tests/base/file_size_limit.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Aligned memory, each byte of which depends on its place and on `seed`.
class Memory {
 public:
  explicit Memory(int64_t bytes) : storage_(static_cast<size_t>(bytes + kAioAlignment)) {}
  char* data() { return static_cast<char*>(AlignForAio(storage_.data())); }
  void Fill(int64_t bytes, int seed) {
    for (int64_t i = 0; i < bytes; ++i)
      data()[i] = At(i, seed);
  }
  static char At(int64_t i, int seed) { return static_cast<char>(i * 31 + i / 4096 + seed); }
  void Expect(int64_t bytes, int seed) {
    for (int64_t i = 0; i < bytes; ++i)
      ASSERT_EQ(data()[i], At(i, seed)) << i;
  }

 private:
  std::vector<char> storage_;
};

void Read(AsyncFile& file, int64_t offset, void* data, int64_t bytes) {
  file.Wait(file.ReadAsync(offset, data, bytes));
}
void Write(AsyncFile& file, int64_t offset, const void* data, int64_t bytes) {
  file.Wait(file.WriteAsync(offset, data, bytes));
}

class AsyncFileTest : public testing::Test {
 protected:
  std::unique_ptr<AsyncFile> Create(int64_t size_bytes, const AioOptions& options = {}) {
    return AsyncFile::Create(folder.path(), size_bytes, options);
  }

  TempFolder folder;
};

TEST_F(AsyncFileTest, GivesBackWhatWasWrittenUnderAllOptions) {
  constexpr int64_t kBytes = 300'000;
  for (const int64_t block_size : {4096, 65'536, 1 << 20}) {
    for (const int depth : {1, 2, 8}) {
      for (const int workers : {1, 3}) {
        for (const bool single : {false, true}) {
          for (const bool overlap : {false, true}) {
            const auto file = Create(kBytes, {block_size, depth, workers, single, overlap});
            Memory memory(kBytes);
            memory.Fill(kBytes, depth);
            Write(*file, 0, memory.data(), kBytes);
            memory.Fill(kBytes, depth + 1);
            Read(*file, 0, memory.data(), kBytes);
            memory.Expect(kBytes, depth);
          }
        }
      }
    }
  }
}

TEST_F(AsyncFileTest, ManyRequestsInFlightEndEachForItself) {
  constexpr int kNumRequests = 40;
  constexpr int64_t kBytes = 24'576;
  const auto file = Create(kNumRequests * kBytes, {.block_size = 8192, .intra_op_parallelism = 2});
  std::vector<Memory> memories(kNumRequests, Memory(kBytes));
  const auto all = [&](const std::function<int64_t(int)>& start) {
    std::vector<int64_t> tickets;
    for (int i = 0; i < kNumRequests; ++i)
      tickets.push_back(start(i));
    for (int i = kNumRequests - 1; i >= 0; --i)  // In any order.
      file->Wait(tickets[static_cast<size_t>(i)]);
  };
  for (int i = 0; i < kNumRequests; ++i)
    memories[static_cast<size_t>(i)].Fill(kBytes, i);
  all([&](int i) {
    return file->WriteAsync(i * kBytes, memories[static_cast<size_t>(i)].data(), kBytes);
  });
  all([&](int i) {
    return file->ReadAsync((kNumRequests - 1 - i) * kBytes, memories[static_cast<size_t>(i)].data(),
                           kBytes);
  });
  for (int i = 0; i < kNumRequests; ++i)
    memories[static_cast<size_t>(i)].Expect(kBytes, kNumRequests - 1 - i);
}

TEST_F(AsyncFileTest, UnalignedRequestsAndWhatWasNeverWritten) {
  const auto file = Create(1'000'000, {.block_size = 16'384});
  Memory memory(200'000);
  Read(*file, 900'000, memory.data(), 100'000);
  EXPECT_EQ(std::count(memory.data(), memory.data() + 100'000, 0), 100'000);
  memory.Fill(100'001, 5);
  Write(*file, 12'345, memory.data(), 100'001);
  Read(*file, 8192, memory.data(), 122'880);  // Aligned, around it.
  for (int64_t i = 0; i < 100'001; ++i)
    ASSERT_EQ(memory.data()[12'345 - 8192 + i], Memory::At(i, 5));
  Read(*file, 12'345, memory.data() + 1, 100'001);
  for (int64_t i = 0; i < 100'001; ++i)
    ASSERT_EQ(memory.data()[1 + i], Memory::At(i, 5));
}

TEST_F(AsyncFileTest, SeveralThreadsMayUseOneFile) {
  constexpr int64_t kBytes = 100'000;
  const auto file = Create(4 * RoundUpForAio(kBytes), {.block_size = 4096, .queue_depth = 3});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Memory memory(kBytes);
      for (int round = 0; round < 5; ++round) {
        memory.Fill(kBytes, i + round);
        Write(*file, i * RoundUpForAio(kBytes), memory.data(), kBytes);
        Read(*file, i * RoundUpForAio(kBytes), memory.data(), kBytes);
        memory.Expect(kBytes, i + round);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(AsyncFileTest, LeavesNothingBehindAndNoName) {
  Memory memory(100'000);
  const auto file = Create(100'000);
  EXPECT_THAT(folder.Names(), IsEmpty());
  file->WriteAsync(0, memory.data(), 100'000);  // The end of the file waits for it.
}

TEST_F(AsyncFileTest, CountsWhatWasAskedForAsAPredictionDoes) {
  const AioOptions options{.block_size = 8192, .intra_op_parallelism = 3};
  const auto file = Create(100'000, options);
  const auto counting = AsyncFile::Counting(100'000, options);
  Memory memory(100'000);
  for (AsyncFile* each : {file.get(), counting.get()}) {
    Write(*each, 0, memory.data(), 100'000);  // 13 blocks
    Read(*each, 4096, memory.data(), 8193);   // 2
    Read(*each, 0, memory.data(), 0);
    EXPECT_EQ(each->traffic(), (AioTraffic{15, 8193, 100'000}));
  }
}

TEST_F(AsyncFileTest, AFailedBlockIsNamedAndTheFileGoesOn) {
  const auto file = Create(100'000, {.block_size = 4096});
  // Memory that nobody may touch: reading into it fails in the kernel.
  void* forbidden = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  const Error error = ErrorOf([&] { Read(*file, 12'288, forbidden, 4096); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(error.what(), HasSubstr("scratch file in " + folder.path() + ": "));
  EXPECT_THAT(error.what(), HasSubstr(": reading 4096 bytes at 12288: Bad address"));
  munmap(forbidden, 8192);
  Memory memory(4096);
  Read(*file, 12'288, memory.data(), 4096);
}

TEST_F(AsyncFileTest, AShortWriteGoesOnWhereItStopped) {
  const auto file = Create(100'000, {.block_size = 65'536});
  Memory memory(65'536);
  memory.Fill(65'536, 9);
  const Error error = ErrorOf([&] {
    // The kernel writes up to the limit, says how far it came, then refuses the rest.
    const FileSizeLimit limit(40'960);
    Write(*file, 0, memory.data(), 65'536);
  });
  EXPECT_THAT(error.what(), HasSubstr("writing 24576 bytes at 40960: File too large"));
  memory.Fill(65'536, 0);
  Read(*file, 0, memory.data(), 40'960);
  memory.Expect(40'960, 9);
}

TEST_F(AsyncFileTest, FoldersThatCannotHoldTheFileAreRefused) {
  EXPECT_EQ(ErrorOf([&] { AsyncFile::Create(folder / "none", 1, {}); }).code(),
            ErrorCode::kNotFound);
  const Error full = ErrorOf([&] { Create(int64_t{1} << 50); });
  EXPECT_EQ(full.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(full.what(), HasSubstr("scratch file in " + folder.path() + ": 1.0 PiB wanted, "));
  EXPECT_THAT(full.what(), HasSubstr("No space left on device"));
  EXPECT_THAT(folder.Names(), IsEmpty());
}

TEST_F(AsyncFileTest, OptionsOutOfRangeAreRefusedByName) {
  const auto expect = [&](const AioOptions& options, const std::string& message) {
    const Error error = ErrorOf([&] { Create(4096, options); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.what(), message);
    EXPECT_EQ(ErrorOf([&] { AsyncFile::Counting(4096, options); }).what(), message);
  };
  expect({.block_size = 1000},
         "/aio/block_size: 1000; expected a multiple of 4096 up to 1073741824");
  expect({.queue_depth = 0}, "/aio/queue_depth: 0; expected 1 to 256");
  expect({.intra_op_parallelism = 65}, "/aio/intra_op_parallelism: 65; expected 1 to 64");
  EXPECT_THAT(folder.Names(), IsEmpty());
}

TEST(AioAlignmentTest, RoundsUpToThePage) {
  EXPECT_EQ(RoundUpForAio(0), 0);
  EXPECT_EQ(RoundUpForAio(1), 4096);
  EXPECT_EQ(RoundUpForAio(4096), 4096);
  EXPECT_EQ(AlignForAio(reinterpret_cast<void*>(8193)), reinterpret_cast<void*>(12'288));
}

}  // namespace
}  // namespace dsat::engine
