// cuBLASLt, looked up when it is first used.
#include "engine/backend/cuda/cublaslt.h"

#include "engine/backend/cuda/find_function.h"
#include "engine/backend/open_library.h"

namespace dsat::engine::cublaslt {

std::string Load(Api& api) {
  const std::string name = fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000);
  const OpenedLibrary opened = OpenLibrary(name);
  void* const library = opened.handle;
  if (library == nullptr) {
    return fmt::format("{}; install cuBLAS of CUDA {}, or use device cpu", opened.problem,
                       CUDART_VERSION / 1000);
  }
  api.path = opened.path;
  std::string problem;
  const auto find = [&](const char* function, auto& pointer) {
    FindFunction(library, "cuBLASLt", function, pointer, problem);
  };
  find("cublasLtCreate", api.create);
  find("cublasLtDestroy", api.destroy);
  find("cublasLtMatmulDescCreate", api.product_create);
  find("cublasLtMatmulDescSetAttribute", api.product_set);
  find("cublasLtMatmulDescDestroy", api.product_destroy);
  find("cublasLtMatrixLayoutCreate", api.matrix_create);
  find("cublasLtMatrixLayoutDestroy", api.matrix_destroy);
  find("cublasLtMatmulPreferenceCreate", api.preference_create);
  find("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  find("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  find("cublasLtMatmulAlgoGetHeuristic", api.choose);
  find("cublasLtMatmul", api.multiply);
  return problem;
}

}  // namespace dsat::engine::cublaslt
