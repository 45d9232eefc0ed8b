// The number of CPU cores that are available to this process.
#pragma once

#include <sched.h>

#include <cstdint>

namespace dsat {

// The cores in this process's CPU affinity mask; 1 if the mask cannot be read.
inline int64_t NumCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace dsat
