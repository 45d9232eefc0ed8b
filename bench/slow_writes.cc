// Makes every write and every fsync of a regular file slow, as on a disk that answers late.
//
//   LD_PRELOAD=build/libdsat-slow-writes.so DSAT_SLOW_MS=200 DSAT_SLOW_COUNTS=counts program
//
// Each call first sleeps for DSAT_SLOW_MS milliseconds; if DSAT_SLOW_SYNCS is set, only the fsyncs
// do, as on a local disk whose cache the kernel writes later. Each process appends the paths that
// it has written to, one line for each slow call, to DSAT_SLOW_COUNTS.PID if the variable is set.
// Files in memory (memfd), pipes, terminals and sockets are not slowed down, and neither are
// renames and removals, which a local file system does in memory.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof(path));
  return std::string(path, length > 0 ? static_cast<size_t>(length) : 0);
}

void Note(const char* call, const std::string& path) {
  const char* counts = getenv("DSAT_SLOW_COUNTS");
  if (counts == nullptr) return;
  const std::string name = std::string(counts) + "." + std::to_string(getpid());
  const int out = open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const std::string line = std::string(call) + " " + path + "\n";
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  [[maybe_unused]] const ssize_t written = next(out, line.data(), line.size());
  close(out);
}

void Delay(const char* call, int fd) {
  const int before = errno;
  struct stat status {};
  const bool is_on_disk =
      fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
  const std::string path = is_on_disk ? PathOf(fd) : "";
  const bool is_slow = getenv("DSAT_SLOW_SYNCS") == nullptr || strstr(call, "sync") != nullptr;
  if (is_slow && path.starts_with('/') && !path.starts_with("/memfd:") &&
      !path.starts_with("/proc/") && !path.starts_with("/dev/")) {
    Note(call, path);
    const char* given = getenv("DSAT_SLOW_MS");
    const long ms = given == nullptr ? 0 : atol(given);
    timespec left = {ms / 1000, ms % 1000 * 1'000'000};
    while (nanosleep(&left, &left) != 0) {
    }
  }
  errno = before;
}

}  // namespace

#define DSAT_SLOW(result, name, parameters, arguments)        \
  result name parameters {                                    \
    Delay(#name, fd);                                         \
    static auto* const next = Next<result parameters>(#name); \
    return next arguments;                                    \
  }

extern "C" {
DSAT_SLOW(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size))
DSAT_SLOW(ssize_t, writev, (int fd, const iovec* parts, int count), (fd, parts, count))
DSAT_SLOW(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t offset),
          (fd, data, size, offset))
DSAT_SLOW(ssize_t, pwrite64, (int fd, const void* data, size_t size, off64_t offset),
          (fd, data, size, offset))
DSAT_SLOW(int, fsync, (int fd), (fd))
DSAT_SLOW(int, fdatasync, (int fd), (fd))
}
