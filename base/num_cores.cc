// The number of CPU cores that are available to this process.
#include "base/num_cores.h"

#include <sched.h>

namespace dsat {

int64_t NumCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace dsat
