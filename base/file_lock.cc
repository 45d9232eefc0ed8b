// Advisory locks on files.
#include "base/file_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/parse_number.h"

namespace dsat {
namespace {

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

// Whether the process that has written its number has ended, or none has.
bool IsOfNobody(int fd) {
  const pid_t pid = ParseNumber<pid_t>(ReadPid(fd)).value_or(0);
  return pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH);
}

// Who only looks whether it is held holds it for an instant, or on a busy machine for longer.
int TryLockRepeatedly(int fd) {
  constexpr int kTries = 40, kMostTries = 1000;
  for (int i = 1; i < kMostTries && TryLock(fd, LOCK_EX) != 0; ++i) {
    if (errno != EWOULDBLOCK) return -1;
    if (i >= kTries && !IsOfNobody(fd)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return TryLock(fd, LOCK_EX);
}

}  // namespace

FileLock FileLock::Acquire(const std::string& path, const std::string& taken) {
  while (true) {
    UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file) ThrowErrno(path, errno);
    if (TryLockRepeatedly(file.get()) != 0) {
      if (errno != EWOULDBLOCK) ThrowErrno(path, errno);
      Throw(ErrorCode::kFailedPrecondition, "{} process {}; wait for it, or stop it first", taken,
            ReadPid(file.get()));
    }
    if (!StillNamed(file.get(), path)) continue;
    FileLock lock(path, std::move(file));  // This process now removes the file.
    WritePid(lock.fd_.get(), path);
    return lock;
  }
}

bool FileLock::IsHeld(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file && TryLock(file.get(), LOCK_SH) != 0 && errno == EWOULDBLOCK;
}

FileLock::~FileLock() {
  if (!path_.empty()) unlink(path_.c_str());  // While it is locked: see StillNamed.
}

}  // namespace dsat
