// The memory file that the ranks of one host share, and the allocation of its pages.
#include "engine/comm/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace dsat::engine {
namespace {

UniqueFd Duplicate(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) ThrowErrno(fmt::format("the process group's memory file (fd {})", fd), errno);
  return copy;
}

// Grows the file as needed. Returns 0 or errno.
int TakePages(int fd, int64_t offset, int64_t bytes) {
  for (;;) {
    if (bytes == 0 || fallocate(fd, 0, offset, bytes) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

static_assert(std::atomic<int64_t>::is_always_lock_free);

}  // namespace

SharedFile::SharedFile(int fd, int64_t head_bytes)
    : file_(Duplicate(fd)), head_end_(HeadOffset() + head_bytes) {
  OffsetOf("the process group's memory file", -TakePages(file_.get(), 0, head_end_));
  mapping_ = Map(0, HeadOffset());
  given_bytes_ = reinterpret_cast<std::atomic<int64_t>*>(mapping_.data());
}

int64_t SharedFile::Reserve(int64_t bytes) {
  // Without this check, the kernel might kill a process before it reports the lack of memory.
  if (bytes / sysconf(_SC_PAGESIZE) > sysconf(_SC_PHYS_PAGES)) return -ENOMEM;
  // No offset is used twice, so that a range is always zero.
  const int64_t offset = head_end_ + given_bytes_->fetch_add(bytes);
  const int error = TakePages(file_.get(), offset, bytes);
  return error == 0 ? offset : -error;
}

int64_t SharedFile::OffsetOf(const std::string& what, int64_t result) {
  if (result >= 0) return result;
  if (result == -EFBIG) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}: more than the limit of file sizes (ulimit -f), which holds for shared memory, too; "
          "raise it",
          what);
  }
  ThrowErrno(what, static_cast<int>(-result));
}

void SharedFile::Release(int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

int64_t SharedFile::HeadOffset() {
  return RoundUpToPage(sizeof(std::atomic<int64_t>));
}

Mapping::Mapping(int fd, int64_t offset, int64_t bytes) {
  if (bytes == 0) return;  // mmap rejects empty ranges, but empty buffers are allowed.
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  // Populated, so that collectives have no page faults.
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    flags | MAP_POPULATE, fd, offset);
  if (data == MAP_FAILED) {
    ThrowErrno(fmt::format("mapping {} bytes of communication memory", bytes), errno);
  }
  data_ = {static_cast<char*>(data), {bytes}};
}

void Mapping::Unmap::operator()(char* data) const {
  munmap(data, static_cast<size_t>(bytes));
}

int64_t RoundUpToPage(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

}  // namespace dsat::engine
