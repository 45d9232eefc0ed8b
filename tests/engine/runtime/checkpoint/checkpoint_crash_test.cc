// Crashes and full disks while a checkpoint is saved. This program has its own versions of the
// system calls that change a disk: they count, and end the process or fail where a test says.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/files.h"
#include "engine/files/checkpoint_manifest.h"
#include "tests/engine/runtime/training.h"
#include "tests/temp_folder.h"

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct DiskFaults {
  std::atomic<bool> armed = false;
  std::atomic<int64_t> num_calls = 0;
  std::atomic<int64_t> kill_at = kNever;    // SIGKILL instead of this call.
  std::atomic<int64_t> full_from = kNever;  // No space from this call on.
  std::mutex mutex;
  std::vector<std::string> log;  // "write /path", "fsync /path", "rename /path".
};

DiskFaults& Faults() {
  static DiskFaults faults;
  return faults;
}

std::string PathOf(int fd) {
  std::string path(4096, '\0');
  const long size = syscall(SYS_readlink, ("/proc/self/fd/" + std::to_string(fd)).c_str(),
                            path.data(), path.size());
  return path.substr(0, static_cast<size_t>(std::max(size, 0L)));
}

// True if the call must fail for want of space.
bool Count(const char* call, const std::string& path) {
  DiskFaults& faults = Faults();
  if (!faults.armed) return false;
  const int64_t number = faults.num_calls++;
  if (number == faults.kill_at) raise(SIGKILL);
  const std::lock_guard lock(faults.mutex);
  faults.log.push_back(std::string(call) + " " + path);
  return number >= faults.full_from;
}

int NoSpace() {
  errno = ENOSPC;
  return -1;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  const bool torn = Faults().armed && Faults().num_calls == Faults().kill_at;
  if (torn) syscall(SYS_write, fd, data, size / 2);
  if (Count("write", Faults().armed ? PathOf(fd) : "")) return NoSpace();
  return syscall(SYS_write, fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  if (Count("write", Faults().armed ? PathOf(fd) : "")) return NoSpace();
  return syscall(SYS_pwrite64, fd, data, size, offset);
}

int fsync(int fd) {
  if (Count("fsync", Faults().armed ? PathOf(fd) : "")) return NoSpace();
  return static_cast<int>(syscall(SYS_fsync, fd));
}

int rename(const char* from, const char* to) noexcept {
  if (Count("rename", to)) return NoSpace();
  return static_cast<int>(syscall(SYS_rename, from, to));
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (Count("mkdir", path)) return NoSpace();
  return static_cast<int>(syscall(SYS_mkdir, path, mode));
}

int unlink(const char* path) noexcept {
  Count("unlink", path);
  return static_cast<int>(syscall(SYS_unlink, path));
}

int remove(const char* path) noexcept {
  Count("unlink", path);
  if (syscall(SYS_unlink, path) == 0) return 0;
  return errno == EISDIR ? static_cast<int>(syscall(SYS_rmdir, path)) : -1;
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if ((flags & O_CREAT) != 0 && Count("create", path)) return NoSpace();
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

}  // extern "C"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int kRanks = 2;

class CheckpointCrashTest : public testing::Test {
 protected:
  CheckpointCrashTest() {
    Faults().armed = false;
    Faults().num_calls = 0;
    Faults().kill_at = Faults().full_from = kNever;
    Faults().log.clear();
  }

  // Runs fn(engine, group) on every rank.
  void OnRanks(const std::function<void(Engine&, ProcessGroup&)>& fn) const {
    OnEngines(model_, config_, kRanks, fn);
  }

  // A folder with checkpoint "first" of one step.
  std::string First() const {
    const std::string dir = root_ / "first";
    OnRanks([&](Engine& engine, ProcessGroup&) {
      engine.TrainBatch();
      engine.SaveCheckpoint(dir, "first");
    });
    return dir;
  }

  // Steps and first parameters of the checkpoint that a load gives.
  std::pair<int64_t, std::vector<float>> Load(const std::string& dir,
                                              const std::string& tag = "") const {
    std::pair<int64_t, std::vector<float>> result;
    OnRanks([&](Engine& engine, ProcessGroup& group) {
      engine.LoadCheckpoint(dir, tag);
      if (group.rank() != 0) return;
      const Tensor params = EngineInternals(engine).states().ParamSlice(0);
      result = {engine.num_steps(), std::vector<float>(params.f32(), params.f32() + 50)};
    });
    return result;
  }

  // Saves a checkpoint of two steps in a process of its own, which the faults may end; gives its
  // wait status.
  int SaveInChild(const std::string& dir, const std::string& tag, int64_t kill_at) const {
    const pid_t child = fork();
    if (child != 0) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      return status;
    }
    OnRanks([&](Engine& engine, ProcessGroup& group) {
      engine.LoadCheckpoint(dir);
      engine.TrainBatch();
      Faults().kill_at = kill_at;
      group.Barrier();
      Faults().armed = true;
      engine.SaveCheckpoint(dir, tag);
    });
    _exit(0);
  }

  const TempFolder root_;
  const Model model_ = TinyMlp();
  const DsConfig config_ = TinyConfig(1, kRanks, 1);
};

class KilledSaveTest : public CheckpointCrashTest,
                       public testing::WithParamInterface<std::string> {};

TEST_P(KilledSaveTest, LeavesTheStateBeforeOrTheStateAfterWhereverItIsKilled) {
  const std::string tag = GetParam();
  const std::string first = First();
  const auto before = Load(first);
  const std::string whole = root_ / "whole";
  fs::copy(first, whole, fs::copy_options::recursive);
  ASSERT_EQ(SaveInChild(whole, tag, kNever), 0);
  const auto after = Load(whole);
  ASSERT_EQ(before.first, 1);
  ASSERT_EQ(after.first, 2);

  int64_t num_before = 0, num_after = 0;
  for (int64_t call = 0;; ++call) {
    const std::string dir = root_ / std::to_string(call);
    fs::copy(first, dir, fs::copy_options::recursive);
    const int status = SaveInChild(dir, tag, call);
    if (status == 0) break;  // The save has fewer calls.
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << call;
    const auto loaded = Load(dir);
    (loaded.first == 1 ? num_before : num_after) += 1;
    EXPECT_EQ(loaded, loaded.first == 1 ? before : after) << call;
    if (tag != "first") {
      EXPECT_EQ(Load(dir, "first"), before) << call;
    }
    // The next save goes well and clears up.
    ASSERT_EQ(SaveInChild(dir, "third", kNever), 0);
    EXPECT_EQ(Load(dir).first, loaded.first + 1);
    for (const auto& entry : fs::recursive_directory_iterator(dir))
      EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr(".tmp."))) << call;
    for (const auto& entry : fs::directory_iterator(dir)) {
      if (!entry.is_directory()) continue;
      const auto files = std::distance(fs::directory_iterator(entry), fs::directory_iterator());
      EXPECT_TRUE(files == kRanks + 1 || files == 0) << call << " " << entry.path();
    }
    fs::remove_all(dir);
  }
  EXPECT_GT(num_before, 10);
  EXPECT_GT(num_after, 0);
}

INSTANTIATE_TEST_SUITE_P(Tags, KilledSaveTest, testing::Values("first", "second"),
                         [](const auto& info) {
                           return info.param == "first" ? "ReplacingATag" : "ANewTag";
                         });

TEST_F(CheckpointCrashTest, AFullDiskIsReportedAndTrainingGoesOn) {
  const std::string dir = First();
  const auto before = Load(dir);
  OnRanks([&](Engine& engine, ProcessGroup& group) {
    engine.LoadCheckpoint(dir);
    engine.TrainBatch();
    bool saved = false;
    for (int64_t call = 0; !saved; ++call) {
      ASSERT_LT(call, 1000);
      group.Barrier();
      Faults().full_from = call;
      Faults().num_calls = 0;
      Faults().armed = true;
      group.Barrier();
      std::string message;
      try {
        engine.SaveCheckpoint(dir, "second");
        saved = true;
      } catch (const Error& e) {
        message = e.what();
      }
      group.Barrier();
      Faults().armed = false;
      EXPECT_EQ(group.MaxScalar(saved ? 1 : 0), saved ? 1 : 0) << "the ranks disagree";
      if (saved) break;
      // The message may be of any rank.
      EXPECT_THAT(message, HasSubstr("No space left on device"));
      const std::string latest = ReadFile(dir + "/latest");
      EXPECT_EQ(ReadManifest(dir + "/" + latest).engine.at("num_steps"), latest == "first" ? 1 : 2);
    }
  });
  EXPECT_EQ(Load(dir).first, 2);
  EXPECT_EQ(Load(dir, "first"), before);
}

// A loss of power can undo what was not synced: names must come after contents, and each commit
// after all that it names.
TEST_F(CheckpointCrashTest, EverythingIsOnDiskBeforeWhatNamesIt) {
  const std::string dir = fs::canonical(First());
  OnRanks([&](Engine& engine, ProcessGroup& group) {
    engine.LoadCheckpoint(dir);
    group.Barrier();
    Faults().armed = true;
    engine.SaveCheckpoint(dir, "second");
    group.Barrier();
    Faults().armed = false;
  });
  const std::vector<std::string>& log = Faults().log;
  const auto last = [&](const std::string& start) {
    for (auto i = static_cast<int64_t>(log.size()); i-- > 0;) {
      if (log[static_cast<size_t>(i)].starts_with(start)) return i;
    }
    return int64_t{-1};
  };
  const auto after = [&](const std::string& call, int64_t position) {
    for (auto i = static_cast<size_t>(position + 1); i < log.size(); ++i) {
      if (log[i].starts_with(call)) return static_cast<int64_t>(i);
    }
    return kNever;
  };
  const std::string folder = dir + "/second";
  const int64_t manifest = last("rename " + folder + "/manifest.json");
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string path = folder + "/" + RankFileName(rank, 0);
    const int64_t written = last("write " + path), synced = last("fsync " + path);
    const int64_t named = last("rename " + path);
    EXPECT_GE(written, 0);
    EXPECT_LT(written, synced);
    EXPECT_LT(synced, named);
    EXPECT_LT(after("fsync " + folder, named), manifest);
  }
  EXPECT_LT(last("write " + folder + "/manifest.json"), last("fsync " + folder + "/manifest.json"));
  EXPECT_LT(last("fsync " + folder + "/manifest.json"), manifest);
  const int64_t latest = last("rename " + dir + "/latest");
  EXPECT_LT(manifest, latest);
  const auto exactly = [&](const std::string& call, int64_t from, int64_t to) {
    return std::count(log.begin() + from, log.begin() + to, call);
  };
  EXPECT_GE(exactly("fsync " + folder, manifest, latest), 1);
  EXPECT_GE(exactly("fsync " + dir, manifest, latest), 1);
  EXPECT_GE(exactly("fsync " + dir, latest, static_cast<int64_t>(log.size())), 1);
}

}  // namespace
}  // namespace dsat::engine
