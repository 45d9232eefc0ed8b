// Matrix multiplications by cuBLASLt.
//
// cuBLASLt thinks in columns: what is (M, N) row by row is (N, M) to it. So it is asked for
// c^T = op(b)^T op(a)^T, with b first.
#include "engine/backend/cuda/matmul.h"

#include <mutex>
#include <optional>

#include "engine/backend/cost.h"
#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/cuda_stream.h"
#include "engine/backend/cuda/launch_kernel.h"

namespace dsat::engine {
namespace {

constexpr auto kWorkspaceBytes = static_cast<size_t>(kCublasWorkspaceBytes);

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

// No kernel loads more at once. A larger one would make the algorithm, and so the bits of a result,
// depend on where a buffer happens to lie.
constexpr uintptr_t kMostAlignment = 16;

// The largest power of two, up to that, that divides the address.
uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | kMostAlignment;
  return static_cast<uint32_t>(address & (~address + 1));
}

bool Has(const Tensor& t) {
  return t.num_elems > 0;
}

// The library's C; without an addend it is not read.
const void* AddendOf(const op::Matmul& args) {
  return (Has(args.addend) ? args.addend : args.c).data;
}
// The epilogue's vector and matrix; nullptr if there is none.
const void* VectorOf(const op::Matmul& args) {
  if (Has(args.column_sums)) return args.column_sums.data;
  return Has(args.bias) ? args.bias.data : nullptr;
}
const void* AuxOf(const op::Matmul& args) {
  if (Has(args.before_gelu)) return args.before_gelu.data;
  return Has(args.gelu_input) ? args.gelu_input.data : nullptr;
}

// The epilogue that does all that goes with the product, if there is one.
std::optional<cublaslt::Epilogue> EpilogueOf(const op::Matmul& args) {
  const bool bias = Has(args.bias), gradient = Has(args.gelu_input) || Has(args.column_sums);
  const bool odd_aux = AuxOf(args) != nullptr && args.N % 8 != 0;  // See kAuxStride.
  if ((gradient && bias) || odd_aux) return std::nullopt;
  if (Has(args.before_gelu)) return bias ? cublaslt::kGeluAuxBias : cublaslt::kGeluAux;
  if (Has(args.gelu_input)) return cublaslt::kGeluGradient;
  if (Has(args.column_sums)) return cublaslt::kBiasGradientA;
  return bias ? cublaslt::kAddBias : cublaslt::kNoEpilogue;
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
  const cublaslt::Status status = api_.create(&handle_);
  if (status == cublaslt::kAllocationFailed)
    throw OutOfMemory(ErrorCode::kResourceExhausted, "GPU memory: none left for cuBLASLt itself");
  Check(status, "cublasLtCreate");
}

CudaMatmul::Key CudaMatmul::KeyOf(const op::Matmul& args, cublaslt::Epilogue epilogue) {
  return {.M = args.M,
          .N = args.N,
          .K = args.K,
          .from = args.a.dtype,
          .to = args.c.dtype,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .epilogue = epilogue,
          .align_a = AlignmentOf(args.a.data),
          .align_b = AlignmentOf(args.b.data),
          .align_addend = AlignmentOf(AddendOf(args)),
          .align_c = AlignmentOf(args.c.data),
          .align_vector = AlignmentOf(VectorOf(args)),
          .align_aux = AlignmentOf(AuxOf(args))};
}

CudaMatmul::Plan* CudaMatmul::PlanFor(const op::Matmul& args) {
  const std::optional<cublaslt::Epilogue> epilogue = EpilogueOf(args);
  if (!epilogue) return nullptr;
  Open();
  const Key key = KeyOf(args, *epilogue);
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, MakePlan(args, key)).first;
  Plan& plan = found->second;
  if (!plan.is_kept) TakeKept(key, plan);
  return &plan;
}

// Another thread may have kept a choice since the plan was made.
void CudaMatmul::TakeKept(const Key& key, Plan& plan) {
  const std::lock_guard lock(kept_mutex);
  const auto choice = kept.find(key);
  if (choice == kept.end()) return;
  plan.is_kept = true;
  if (plan.state != 0) return;
  plan.algorithms = choice->second;
  if (plan.algorithms.empty()) plan.state = cublaslt::kNotSupported;
}

CudaMatmul::Plan CudaMatmul::MakePlan(const op::Matmul& args, const Key& key) const {
  Plan plan;
  Check(api_.product_create(&plan.product, cublaslt::kCompute32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const auto set = [&](int attribute, auto value) { Set(plan.product, attribute, value); };
  set(cublaslt::kTransposeA, args.transpose_b ? cublaslt::kTransposed : cublaslt::kNormal);
  set(cublaslt::kTransposeB, args.transpose_a ? cublaslt::kTransposed : cublaslt::kNormal);
  set(cublaslt::kEpilogue, key.epilogue);
  if (AuxOf(args) != nullptr) set(cublaslt::kAuxStride, args.N);
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
  SetPointers(plan, args);  // The choice may depend on their alignment.
  Choose(key, plan);
  return plan;
}

void CudaMatmul::SetPointers(const Plan& plan, const op::Matmul& args) const {
  if (const void* vector = VectorOf(args)) Set(plan.product, cublaslt::kBiasPointer, vector);
  if (const void* aux = AuxOf(args)) Set(plan.product, cublaslt::kAuxPointer, aux);
}

template <typename T>
void CudaMatmul::Set(cublaslt::Descriptor product, int attribute, T value) const {
  Check(api_.product_set(product, attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}

void CudaMatmul::Choose(const Key& key, Plan& plan) const {
  constexpr int kMostCandidates = 8;
  cublaslt::Descriptor preference = nullptr;
  Check(api_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](int attribute, auto value) {
    Check(api_.preference_set(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(cublaslt::kMaxWorkspaceBytes, uint64_t{kWorkspaceBytes});
  set(cublaslt::kReductionSchemes, cublaslt::kInComputeType);
  set(cublaslt::kMinAlignmentA, key.align_b);  // b is first.
  set(cublaslt::kMinAlignmentB, key.align_a);
  set(cublaslt::kMinAlignmentC, key.align_addend);
  set(cublaslt::kMinAlignmentD, key.align_c);
  cublaslt::Choice found[kMostCandidates] = {};
  int num_found = 0;
  plan.state = api_.choose(handle_, plan.product, plan.first, plan.second, plan.result, plan.result,
                           preference, kMostCandidates, found, &num_found);
  api_.preference_destroy(preference);
  if (plan.state == 0 && num_found == 0) plan.state = cublaslt::kNotSupported;
  if (plan.state != 0) return;
  for (int i = 0; i < num_found; ++i)
    if (found[i].state == 0) plan.algorithms.push_back(found[i].algorithm);
  if (plan.algorithms.empty()) plan.state = found[0].state;
}

cublaslt::Status CudaMatmul::Multiply(const Plan& plan, const cublaslt::Algorithm& algorithm,
                                      const op::Matmul& args) const {
  SetPointers(plan, args);
  const float alpha = 1, beta = Has(args.addend) ? 1 : 0;
  const cublaslt::Status status =
      api_.multiply(handle_, plan.product, &alpha, args.b.data, plan.first, args.a.data,
                    plan.second, &beta, AddendOf(args), plan.result, args.c.data, plan.result,
                    &algorithm, workspace_, kWorkspaceBytes, cuda::Stream());
  if (status == cublaslt::kAllocationFailed)
    throw OutOfMemory(ErrorCode::kResourceExhausted,
                      "GPU memory: cuBLASLt has none left for a product");
  return status;
}

cublaslt::Status CudaMatmul::TryRun(const op::Matmul& args) {
  Plan* plan = PlanFor(args);
  if (plan == nullptr) return cublaslt::kNotSupported;
  while (!plan->algorithms.empty()) {
    const cublaslt::Status status = Multiply(*plan, plan->algorithms[0], args);
    if (status == 0) return 0;
    plan->state = status;
    plan->algorithms.erase(plan->algorithms.begin());
  }
  return plan->state;
}

void CudaMatmul::Run(const op::Matmul& args) {
  const cublaslt::Status status = TryRun(args);
  if (status == 0) return;
  Throw(ErrorCode::kUnavailable, "GPU: cuBLASLt has no algorithm for {} x {} x {}: status {}",
        args.M, args.N, args.K, status);
}

bool CudaMatmul::IsNew(const op::Matmul& args) {
  const Plan* plan = PlanFor(args);
  return plan != nullptr && !plan->is_kept;
}

double CudaMatmul::Measure(const op::Matmul& args) {
  Plan& plan = *PlanFor(args);
  std::vector<cublaslt::Algorithm> algorithms;
  double best_ms = 0;
  for (const cublaslt::Algorithm& algorithm : plan.algorithms) {
    cublaslt::Status status = 0;
    const double ms = MeasureOnGpu([&] {
      if (status == 0) status = Multiply(plan, algorithm, args);
    });
    if (status != 0) {
      plan.state = status;
      continue;
    }
    const bool wins = algorithms.empty() || ms < kClearly * best_ms;
    algorithms.insert(wins ? algorithms.begin() : algorithms.end(), algorithm);
    if (wins) best_ms = ms;
  }
  if (!algorithms.empty()) plan.state = 0;
  plan.algorithms = algorithms;
  return best_ms;
}

void CudaMatmul::Keep(const op::Matmul& args) {
  Store(args, PlanFor(args)->algorithms);
}

void CudaMatmul::Avoid(const op::Matmul& args) {
  Store(args, {});
}

void CudaMatmul::Store(const op::Matmul& args, const std::vector<cublaslt::Algorithm>& algorithms) {
  const std::lock_guard lock(kept_mutex);
  kept[KeyOf(args, *EpilogueOf(args))] = algorithms;
}

}  // namespace dsat::engine
