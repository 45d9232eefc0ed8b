// The number of CPU cores that are available to this process.
#ifndef DSAT_BASE_NUM_CORES_H_
#define DSAT_BASE_NUM_CORES_H_

#include <cstdint>

namespace dsat {

// The cores in this process's CPU affinity mask; 1 if the mask cannot be read.
int64_t NumCores();

}  // namespace dsat

#endif  // DSAT_BASE_NUM_CORES_H_
