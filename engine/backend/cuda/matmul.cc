// Matrix products by cuBLASLt.
//
// cuBLASLt thinks in columns: what is (M, N) row by row is (N, M) to it. So it is asked for
// c^T = op(b)^T op(a)^T, with b first.
#include "engine/backend/cuda/matmul.h"

#include <algorithm>

#include "engine/backend/cost.h"
#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/launch_kernel.h"

namespace dsat::engine {
namespace {

constexpr auto kWorkspaceBytes = static_cast<size_t>(kCudaWorkspaceBytes);

void Check(cublaslt::Status status, const char* call) {
  if (status != 0) Throw(ErrorCode::kUnavailable, "GPU: {}: cuBLAS status {}", call, status);
}

int CudaType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
  }
  DSAT_CHECK(false, "{}", static_cast<int>(dtype));
}

// The largest power of two, up to what cuBLASLt asks about, that divides the address.
uint32_t AlignmentOf(const Tensor& t) {
  constexpr uintptr_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(t.data) | kMost;
  return static_cast<uint32_t>(address & (~address + 1));
}

}  // namespace

CudaMatmul::~CudaMatmul() {
  if (handle_ == nullptr) return;
  for (const auto& [key, plan] : plans_) {
    api_.product_destroy(plan.product);
    for (cublaslt::Descriptor matrix : {plan.first, plan.second, plan.result})
      api_.matrix_destroy(matrix);
  }
  api_.destroy(handle_);
  cudaFree(workspace_);
}

void CudaMatmul::Open() {
  if (handle_ != nullptr) return;
  const std::string problem = cublaslt::Load(api_);
  if (!problem.empty()) Throw(ErrorCode::kUnavailable, "GPU: {}", problem);
  workspace_ = AllocateOnGpu(kWorkspaceBytes, "cuBLASLt");
  Check(api_.create(&handle_), "cublasLtCreate");
}

CudaMatmul::Plan& CudaMatmul::PlanFor(const MatmulArgs& args) {
  const bool has_bias = args.bias.num_elems > 0;
  const Key key = {args.M,
                   args.N,
                   args.K,
                   args.a.dtype,
                   args.c.dtype,
                   args.transpose_a,
                   args.transpose_b,
                   has_bias,
                   AlignmentOf(args.a),
                   AlignmentOf(args.b),
                   AlignmentOf(args.c)};
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  return plans_[key] = MakePlan(args, key);
}

CudaMatmul::Plan CudaMatmul::MakePlan(const MatmulArgs& args, const Key& key) const {
  Plan plan;
  Check(api_.product_create(&plan.product, cublaslt::kCompute32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const auto set = [&](int attribute, auto value) {
    Check(api_.product_set(plan.product, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  };
  set(cublaslt::kTransposeA, args.transpose_b ? cublaslt::kTransposed : cublaslt::kNormal);
  set(cublaslt::kTransposeB, args.transpose_a ? cublaslt::kTransposed : cublaslt::kNormal);
  set(cublaslt::kEpilogue, args.bias.num_elems > 0 ? cublaslt::kAddBias : cublaslt::kNoEpilogue);
  // A row-major (rows, cols) matrix, as cuBLASLt sees it.
  const auto matrix = [&](cublaslt::Descriptor& descriptor, DType dtype, int64_t rows,
                          int64_t cols) {
    Check(api_.matrix_create(&descriptor, CudaType(dtype), static_cast<uint64_t>(cols),
                             static_cast<uint64_t>(rows), cols),
          "cublasLtMatrixLayoutCreate");
  };
  args.transpose_b ? matrix(plan.first, args.b.dtype, args.N, args.K)
                   : matrix(plan.first, args.b.dtype, args.K, args.N);
  args.transpose_a ? matrix(plan.second, args.a.dtype, args.K, args.M)
                   : matrix(plan.second, args.a.dtype, args.M, args.K);
  matrix(plan.result, args.c.dtype, args.M, args.N);
  Choose(key, plan);
  return plan;
}

void CudaMatmul::Choose(const Key& key, Plan& plan) const {
  cublaslt::Descriptor preference = nullptr;
  Check(api_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](int attribute, auto value) {
    Check(api_.preference_set(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(cublaslt::kMaxWorkspaceBytes, uint64_t{kWorkspaceBytes});
  set(cublaslt::kMinAlignmentA, std::get<9>(key));  // b is first.
  set(cublaslt::kMinAlignmentB, std::get<8>(key));
  set(cublaslt::kMinAlignmentC, std::get<10>(key));
  set(cublaslt::kMinAlignmentD, std::get<10>(key));
  cublaslt::Choice choice = {};
  int found = 0;
  Check(api_.choose(handle_, plan.product, plan.first, plan.second, plan.result, plan.result,
                    preference, 1, &choice, &found),
        "cublasLtMatmulAlgoGetHeuristic");
  api_.preference_destroy(preference);
  if (found == 0) {
    Throw(ErrorCode::kUnavailable, "GPU: cuBLASLt has no algorithm for {} x {} x {}",
          std::get<0>(key), std::get<1>(key), std::get<2>(key));
  }
  plan.algorithm = choice.algorithm;
}

void CudaMatmul::Run(const MatmulArgs& args) {
  Open();
  Plan& plan = PlanFor(args);
  if (args.bias.num_elems > 0) {
    DSAT_CHECK(args.bias.dtype == args.c.dtype);
    Check(api_.product_set(plan.product, cublaslt::kBiasPointer, &args.bias.data,
                           sizeof(args.bias.data)),
          "cublasLtMatmulDescSetAttribute");
  }
  const float alpha = 1, beta = args.accumulate ? 1 : 0;
  Check(api_.multiply(handle_, plan.product, &alpha, args.b.data, plan.first, args.a.data,
                      plan.second, &beta, args.c.data, plan.result, args.c.data, plan.result,
                      &plan.algorithm, workspace_, kWorkspaceBytes, cuda::Stream()),
        "cublasLtMatmul");
}

}  // namespace dsat::engine
