// Who waits for a lock on a file, and who is told that it is taken.
#include "base/file_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/files.h"
#include "base/unique_fd.h"
#include "tests/base/error_code.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

class FileLockTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "lock"; }

  // Holds the lock for a while, as a process does that only looks whether it is held.
  std::thread Look() const {
    UniqueFd file(open(path().c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(flock(file.get(), LOCK_SH), 0);
    return std::thread(
        [held = std::move(file)] { std::this_thread::sleep_for(std::chrono::milliseconds(600)); });
  }

  // The id of a process that has ended.
  static std::string DeadPid() {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    return std::to_string(child);
  }

  const TempFolder folder_;
};

TEST_F(FileLockTest, ALookAtAnUnusedFileOnlyDelaysTheNextHolder) {
  for (const std::string& left : {std::string(), DeadPid()}) {
    WriteFileAtomic(path(), left);
    std::thread look = Look();
    EXPECT_NO_THROW(FileLock::Acquire(path(), "the folder is in use by")) << left;
    look.join();
    EXPECT_FALSE(FileLock::IsHeld(path()));
  }
}

TEST_F(FileLockTest, AHolderThatRunsIsNamed) {
  const FileLock lock = FileLock::Acquire(path(), "the folder is in use by");
  EXPECT_TRUE(FileLock::IsHeld(path()));
  EXPECT_THAT(RefusalOf([&] { FileLock::Acquire(path(), "the folder is in use by"); },
                        ErrorCode::kFailedPrecondition),
              HasSubstr("the folder is in use by process " + std::to_string(getpid())));
}

}  // namespace
}  // namespace dsat
