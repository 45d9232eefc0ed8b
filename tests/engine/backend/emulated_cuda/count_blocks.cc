// How much work kernels do.
#include "tests/engine/backend/emulated_cuda/count_blocks.h"

namespace {
int64_t num_blocks = 0;
}  // namespace

// The compiler calls it at the beginning of each basic block.
extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
  ++num_blocks;
}

namespace emulated_cuda {

int64_t CountBlocks() {
  return num_blocks;
}

}  // namespace emulated_cuda
