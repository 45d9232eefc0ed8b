// cuBLASLt, looked up when it is first used.
#include "engine/backend/cuda/cublaslt.h"

#include "engine/backend/cuda/find_function.h"

namespace dsat::engine::cublaslt {

std::string Load(Api& api) {
  const std::string name = fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fmt::format(
        "{}; expected cuBLAS of CUDA {} where the loader looks (LD_LIBRARY_PATH), or device cpu",
        dlerror(), CUDART_VERSION / 1000);
  }
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
