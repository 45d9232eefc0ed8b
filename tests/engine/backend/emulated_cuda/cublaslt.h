// What tests ask the emulated cuBLASLt. Where EMULATED_CUBLASLT_WITHOUT_EPILOGUES is in the
// environment it has algorithms for products and their biases, and for nothing else.
#ifndef DSAT_TESTS_ENGINE_BACKEND_EMULATED_CUDA_CUBLASLT_H_
#define DSAT_TESTS_ENGINE_BACKEND_EMULATED_CUDA_CUBLASLT_H_

#include <cstdint>

#include "engine/backend/cuda/cublaslt.h"

namespace emulated_cuda {

// Products that ended in it since the program began.
int64_t NumProducts(dsat::engine::cublaslt::Epilogue epilogue);

}  // namespace emulated_cuda

#endif  // DSAT_TESTS_ENGINE_BACKEND_EMULATED_CUDA_CUBLASLT_H_
