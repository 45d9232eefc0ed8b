// cuBLASLt, looked up when it is first used.
#include "engine/backend/cuda/cublaslt.h"

#include "engine/backend/open_library.h"

namespace dsat::engine::cublaslt {

std::string Load(Api& api) {
  const std::string name = fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000);
  OpenedLibrary library = OpenLibrary(name);
  if (library.handle == nullptr) {
    return fmt::format("{}; install cuBLAS of CUDA {}, or use device cpu", library.problem,
                       CUDART_VERSION / 1000);
  }
  api.path = library.path;
  library.Find("cublasLtCreate", api.create);
  library.Find("cublasLtDestroy", api.destroy);
  library.Find("cublasLtMatmulDescCreate", api.product_create);
  library.Find("cublasLtMatmulDescSetAttribute", api.product_set);
  library.Find("cublasLtMatmulDescDestroy", api.product_destroy);
  library.Find("cublasLtMatrixLayoutCreate", api.matrix_create);
  library.Find("cublasLtMatrixLayoutDestroy", api.matrix_destroy);
  library.Find("cublasLtMatmulPreferenceCreate", api.preference_create);
  library.Find("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  library.Find("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  library.Find("cublasLtMatmulAlgoGetHeuristic", api.choose);
  library.Find("cublasLtMatmul", api.multiply);
  return library.problem;
}

}  // namespace dsat::engine::cublaslt
