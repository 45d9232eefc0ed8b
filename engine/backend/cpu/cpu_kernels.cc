// The CPU backend: every kernel, by the file that computes it.
#include "engine/backend/cpu/cpu_kernels.h"

#include <memory>

namespace dsat::engine {

CpuKernels::CpuKernels(int num_threads)
    : num_threads_(num_threads), matmul_(num_threads), conv_(num_threads) {}

std::unique_ptr<Kernels> MakeCpuKernels(int num_threads) {
  DSAT_CHECK(num_threads > 0, "{} threads", num_threads);
  return std::make_unique<CpuKernels>(num_threads);
}

}  // namespace dsat::engine
