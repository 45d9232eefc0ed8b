// How many processors there are for us.
#ifndef DSAT_BASE_NUM_CORES_H_
#define DSAT_BASE_NUM_CORES_H_

#include <cstdint>

namespace dsat {

// Cores that this process may run on.
int64_t NumCores();

}  // namespace dsat

#endif  // DSAT_BASE_NUM_CORES_H_
