// Ensures that an experiment has one search runner.
#include "searcher/runner_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/unique_fd.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// True if the locked file still has its name: the previous holder may have removed it between open
// and flock, and a lock on a removed file does not exclude others.
bool StillNamed(int fd, const std::string& path) {
  struct stat by_fd {
  }, by_path{};
  return fstat(fd, &by_fd) == 0 && stat(path.c_str(), &by_path) == 0 &&
         by_fd.st_dev == by_path.st_dev && by_fd.st_ino == by_path.st_ino;
}

std::string ReadPid(int fd) {
  std::array<char, 32> text{};
  const ssize_t size = pread(fd, text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<size_t>(size)) : "unknown";
}

void WritePid(int fd, const std::string& path) {
  const std::string pid = std::to_string(getpid());
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) ThrowErrno(path, errno);
}

int TryLock(int fd, int kind) {
  int result = 0;
  do {
    result = flock(fd, kind | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result;
}

// IsHeld of another process holds the lock for an instant.
int TryLockRepeatedly(int fd) {
  constexpr int kTries = 10;
  for (int i = 1; i < kTries && TryLock(fd, LOCK_EX) != 0; ++i) {
    if (errno != EWOULDBLOCK) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return TryLock(fd, LOCK_EX);
}

// The path of an existing file without symbolic links, so that all names of it are one.
std::string RealPath(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? fs::absolute(path).string() : real.string();
}

std::string LockPath(const std::string& store_path, ExperimentId id) {
  return fmt::format("{}.exp{}.lock", RealPath(store_path), id);
}

std::string OwnerPath(const std::string& dir) {
  return dir + "/experiment.json";
}

// Null if the folder belongs to nobody.
Json OwnerOf(const std::string& dir) {
  return fs::exists(OwnerPath(dir)) ? ReadJsonFile(OwnerPath(dir)) : Json();
}

bool IsFree(const std::string& dir, const Json& owner) {
  const Json there = OwnerOf(dir);
  return there.is_null() || there == owner;
}

void RefuseUnlessFree(const std::string& dir, const Json& owner) {
  if (IsFree(dir, owner)) return;
  const Json there = OwnerOf(dir);
  Throw(ErrorCode::kFailedPrecondition,
        "{}: this folder has the results of experiment {} of {}; expected --out with another "
        "folder",
        dir, there.value("experiment", Json()).dump(), there.value("database", Json()).dump());
}

}  // namespace

RunnerLock RunnerLock::Acquire(const std::string& store_path, ExperimentId id) {
  if (store_path == ":memory:") return RunnerLock("", -1);
  return Lock(LockPath(store_path, id), fmt::format("experiment {} is being run by", id));
}

RunnerLock RunnerLock::LockFolder(const std::string& dir) {
  return Lock(dir + "/.lock", fmt::format("{} is in use by", dir));
}

void RunnerLock::CheckUnclaimed(const std::string& dir) {
  const RunnerLock lock = LockFolder(dir);
  RefuseUnlessFree(dir, nullptr);
}

RunnerLock RunnerLock::ClaimFolder(const std::string& dir, const Json& owner) {
  RunnerLock lock = LockFolder(dir);
  if (owner.is_null()) return lock;
  RefuseUnlessFree(dir, owner);
  if (!fs::exists(OwnerPath(dir))) WriteJsonFile(OwnerPath(dir), owner);
  return lock;
}

RunnerLock RunnerLock::Lock(const std::string& path, const std::string& taken) {
  while (true) {
    RunnerLock lock("", open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (lock.fd_ < 0) ThrowErrno(path, errno);
    if (TryLockRepeatedly(lock.fd_) != 0) {
      if (errno != EWOULDBLOCK) ThrowErrno(path, errno);
      Throw(ErrorCode::kFailedPrecondition, "{} process {}; wait for it, or stop it first", taken,
            ReadPid(lock.fd_));
    }
    if (!StillNamed(lock.fd_, path)) continue;
    lock.path_ = path;  // This process now removes the file.
    WritePid(lock.fd_, path);
    return lock;
  }
}

bool RunnerLock::IsHeld(const std::string& store_path, ExperimentId id) {
  const UniqueFd file(open(LockPath(store_path, id).c_str(), O_RDONLY | O_CLOEXEC));
  return file.get() >= 0 && TryLock(file.get(), LOCK_SH) != 0 && errno == EWOULDBLOCK;
}

RunnerLock::RunnerLock(RunnerLock&& other) noexcept
    : path_(std::exchange(other.path_, "")), fd_(std::exchange(other.fd_, -1)) {}

RunnerLock& RunnerLock::operator=(RunnerLock&& other) noexcept {
  if (this != &other) {
    Release();
    path_ = std::exchange(other.path_, "");
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

RunnerLock::~RunnerLock() {
  Release();
}

void RunnerLock::Release() {
  if (!path_.empty()) unlink(path_.c_str());  // While it is locked: see StillNamed.
  if (fd_ >= 0) close(fd_);
  path_.clear();
  fd_ = -1;
}

Json FolderOwner(const std::string& store_path, ExperimentId id, const std::string& created_at) {
  if (store_path == ":memory:") return nullptr;
  return {{"database", RealPath(store_path)}, {"experiment", id}, {"created_at", created_at}};
}

std::string FreeFolder(const std::string& dir, const Json& owner) {
  std::string candidate = dir;
  if (owner.is_null()) return candidate;
  for (int i = 2; !IsFree(candidate, owner); ++i)
    candidate = fmt::format("{}-{}", dir, i);
  return candidate;
}

}  // namespace dsat
