// An owned range of mapped memory.
#include "engine/comm/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace dsat::engine {

Mapping::Mapping(int fd, int64_t offset, int64_t bytes, int flags) {
  if (bytes == 0) return;  // mmap rejects empty ranges, but empty buffers are allowed.
  // Populated, so that collectives have no page faults.
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    flags | MAP_POPULATE, fd, offset);
  if (data == MAP_FAILED) {
    ThrowErrno(fmt::format("mapping {} bytes of communication memory", bytes), errno);
  }
  data_ = {static_cast<char*>(data), {bytes}};
}

Mapping::Mapping(int fd, int64_t offset, int64_t bytes) : Mapping(fd, offset, bytes, MAP_SHARED) {}

Mapping Mapping::Private(int64_t bytes) {
  return Mapping(-1, 0, bytes, MAP_PRIVATE | MAP_ANONYMOUS);
}

void Mapping::Unmap::operator()(char* data) const {
  munmap(data, static_cast<size_t>(bytes));
}

int64_t RoundUpToPage(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

}  // namespace dsat::engine
