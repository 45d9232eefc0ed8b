// The questions of tests to the emulated cuBLASLt. Where EMULATED_CUBLASLT_WITHOUT_EPILOGUES is in
// the environment it has algorithms for products and their biases, and for nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/cuda/cublaslt.h"

namespace emulated_cuda {

// An algorithm that the library recommends, and the pieces of work that it takes: without and with
// an epilogue that does more than add a bias. One that fails does so at its call.
struct Algorithm {
  int work = 1, epilogue_work = 1;
  bool fails = false;
};
// Sets the algorithms of all products from now on, the recommended one first. At the beginning
// there is one.
void SetAlgorithms(std::vector<Algorithm> algorithms);
// The algorithm of the last product.
int LastAlgorithm();

// Products that ended in it since the program began.
int64_t NumProducts(dsat::engine::cublaslt::Epilogue epilogue);

}  // namespace emulated_cuda
