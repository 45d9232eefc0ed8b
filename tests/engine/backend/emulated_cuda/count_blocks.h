// How much work kernels do: the basic blocks that code compiled with -fsanitize-coverage=trace-pc
// enters. Each iteration of a loop and each branch that is taken counts, whatever it is for.
#pragma once

#include <cstdint>

namespace emulated_cuda {

// Since the program began.
int64_t CountBlocks();

}  // namespace emulated_cuda
