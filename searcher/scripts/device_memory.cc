// The memory that one rank of a command on this machine may use, as far as it can be determined.
#include "searcher/scripts/device_memory.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "base/files.h"

namespace dsat {

std::optional<int64_t> SmallestMib(const std::string& text) {
  std::istringstream lines(text);
  std::optional<int64_t> smallest;
  int64_t mib = 0;
  while (lines >> mib)
    smallest = smallest ? std::min(*smallest, mib) : mib;
  if (!lines.eof() || !smallest || *smallest <= 0) return std::nullopt;
  return *smallest << 20;
}

std::optional<int64_t> NvidiaMemoryBytes() {
  if (access("/dev/nvidiactl", F_OK) != 0) return std::nullopt;
  // nvidia-smi can hang if the driver has failed.
  const ShellAnswer answer = RunShell(
      "timeout 10 nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null");
  return answer.exit_code == 0 ? SmallestMib(answer.text) : std::nullopt;
}

int64_t HostMemoryBytes() {
  return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

}  // namespace dsat
