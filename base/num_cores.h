// The number of CPU cores that are available to this process.
#pragma once

#include <cstdint>

namespace dsat {

// The cores in this process's CPU affinity mask; 1 if the mask cannot be read.
int64_t NumCores();

}  // namespace dsat
