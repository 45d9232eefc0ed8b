// The CUDA backend: matrix multiplications, and the class that runs all kernels.
#include "engine/backend/cuda/cuda_kernels.h"

#include <mutex>
#include <type_traits>

#include "engine/backend/any_kernels.h"
#include "engine/backend/cost.h"
#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/matmul.h"

namespace dsat::engine {
namespace {

// Throws kUnavailable naming the kernel if a launch has failed, and OutOfMemory if the GPU lacks
// memory to load it. Kernels run after their launch, so that the error may be that of an earlier
// kernel.
void CheckLaunch(std::string_view kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaErrorMemoryAllocation)
    throw OutOfMemory(ErrorCode::kResourceExhausted,
                      fmt::format("GPU memory: none left to load {}", kernel));
  CheckCuda(error, kernel);
}

class CudaKernels final : public AnyKernels<CudaKernels> {
 public:
  CudaKernels(int gpu, CudaStream& stream) : workspace_(gpu, stream) {}

  int64_t WorkspaceBytes() const override { return kCudaWorkspaceBytes; }
  int64_t AttentionScratchBytes(const AttentionShape& shape) const override {
    return CudaAttentionScratchBytes(shape);
  }
  template <typename Op>
  void RunAny(const Op& op) {
    if constexpr (std::is_same_v<Op, op::Matmul>) {
      if (IsFusible(op) && matmul_.IsNew(FusedOf(op))) Choose(op);
      if (!MultiplyFused(op)) MultiplyApart(op);
    } else {
      Launch(op);
    }
    CheckLaunch(NameOf<Op>());
  }

 private:
  void Launch(const auto& op) { cuda::RunOp(op, workspace_); }
  // The parts of Matmul.
  static bool IsFusible(const op::Matmul& args) {
    const DType from = args.a.dtype, to = args.c.dtype;
    if (from != args.b.dtype || (to != from && to != DType::kF32)) return false;
    return args.bias.num_elems == 0 || args.bias.dtype == to;
  }
  void Choose(const op::Matmul& args);
  bool MultiplyFused(const op::Matmul& args);
  void MultiplyApart(const op::Matmul& args);
  void Multiply(op::Matmul args);
  void MultiplyInF32(const op::Matmul& args);
  // The product as cuBLASLt is asked for it: the sums of columns have the type of its result.
  op::Matmul FusedOf(const op::Matmul& args) {
    op::Matmul fused = args;
    if (args.column_sums.num_elems > 0) {
      fused.column_sums = {workspace_.Get(args.N * BytesPerElem(args.c.dtype)), args.N,
                           args.c.dtype};
    }
    return fused;
  }
  void FinishProduct(const op::Matmul& args);

  CudaWorkspace workspace_;
  CudaMatmul matmul_;
};

// The product alone, into what GELU reads if there is one.
op::Matmul ProductOf(const op::Matmul& args) {
  op::Matmul product = args;
  if (args.before_gelu.num_elems > 0) product.c = args.before_gelu;
  product.before_gelu = product.gelu_input = product.column_sums = {};
  return product;
}

// Measures all of it by one call of cuBLASLt, and by as many as it takes, unless another thread of
// the process has. What is added to is another buffer meanwhile; if the GPU has no memory for that,
// nothing is measured.
void CudaKernels::Choose(const op::Matmul& args) {
  constexpr int64_t kSlack = 64;
  static std::mutex choosing;
  workspace_.stream().WaitWatched();  // Not while others wait: it may be for what they do next.
  const std::lock_guard lock(choosing);
  if (!matmul_.IsNew(FusedOf(args))) return;
  op::Matmul trial = args;
  const bool in_place = args.addend.num_elems > 0 && args.addend.data == args.c.data;
  const int64_t sum_bytes = args.column_sums.bytes();
  const int64_t result_bytes = in_place ? args.M * args.N * BytesPerElem(args.c.dtype) : 0;
  char* scratch = nullptr;
  if (result_bytes + sum_bytes > 0) {
    const int64_t sums_end = (sum_bytes + kSlack - 1) / kSlack * kSlack;
    const auto bytes = static_cast<size_t>(sums_end + kSlack + result_bytes);
    scratch = static_cast<char*>(TryAllocateOnGpu(bytes));
    if (scratch == nullptr) return matmul_.Keep(FusedOf(args));
    trial.column_sums.data = scratch;
    // As far from a multiple of the slack as the original.
    const auto offset = reinterpret_cast<uintptr_t>(args.c.data) % kSlack;
    if (in_place) trial.c.data = scratch + sums_end + offset;
  }
  const op::Matmul fused = FusedOf(trial);
  const double fused_ms = matmul_.Measure(fused);
  const op::Matmul product = ProductOf(trial);
  const bool has_more = trial.before_gelu.num_elems + trial.gelu_input.num_elems + sum_bytes > 0;
  bool is_slower = false;
  if (fused_ms > 0 && has_more) {
    if (matmul_.IsNew(product)) {
      matmul_.Measure(product);
      matmul_.Keep(product);
    }
    const double apart_ms = MeasureOnGpu([&] { MultiplyApart(trial); });
    is_slower = apart_ms < CudaMatmul::kClearly * fused_ms;
  }
  is_slower ? matmul_.Avoid(fused) : matmul_.Keep(fused);
  CheckCuda(cudaFree(scratch), "cudaFree");
}

// All of it by one call of cuBLASLt, where that can.
bool CudaKernels::MultiplyFused(const op::Matmul& args) {
  if (!IsFusible(args)) return false;
  const op::Matmul fused = FusedOf(args);
  if (matmul_.TryRun(fused) != 0) return false;
  const Tensor& sums = fused.column_sums;
  if (sums.num_elems > 0) Launch(op::Accumulate{args.column_sums.Slice(0, args.N), sums});
  return true;
}

void CudaKernels::MultiplyApart(const op::Matmul& args) {
  Multiply(ProductOf(args));
  FinishProduct(args);
}

// A product, its bias and its addend, by as many calls as it takes.
void CudaKernels::Multiply(op::Matmul args) {
  const DType from = args.a.dtype, to = args.c.dtype;
  const Tensor bias = args.bias;
  const bool apart = bias.num_elems > 0 && bias.dtype != to;
  // Only in f32 may a bias be added later: the result is rounded once.
  if (from != args.b.dtype || (to != DType::kF32 && (to != from || apart)))
    return MultiplyInF32(args);
  if (apart) args.bias = {};
  matmul_.Run(args);
  if (apart) cuda::AddBias(args.c, bias, args.M, args.N);
}

void CudaKernels::MultiplyInF32(const op::Matmul& args) {
  constexpr int64_t kAlignment = 256 / BytesPerElem(DType::kF32);
  const auto rounded = [](int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  const int64_t sizes[] = {args.M * args.K, args.K * args.N, args.M * args.N};
  const int64_t total = rounded(sizes[0]) + rounded(sizes[1]) + rounded(sizes[2]);
  auto* next = static_cast<float*>(workspace_.Get(total * BytesPerElem(DType::kF32)));
  op::Matmul in_f32 = args;
  Tensor* const copies[] = {&in_f32.a, &in_f32.b, &in_f32.c};
  const Tensor originals[] = {args.a, args.b, args.addend};
  for (int i = 0; i < 3; ++i) {
    *copies[i] = {next, sizes[i], DType::kF32};
    next += rounded(sizes[i]);
    if (originals[i].num_elems > 0) Launch(op::Cast{*copies[i], originals[i].Slice(0, sizes[i])});
  }
  if (args.addend.num_elems > 0) in_f32.addend = in_f32.c;
  Multiply(in_f32);
  Launch(op::Cast{args.c.Slice(0, sizes[2]), in_f32.c});
}

// Runs the operations that follow a product.
void CudaKernels::FinishProduct(const op::Matmul& args) {
  const auto matrix = [&](const Tensor& t) { return t.Slice(0, args.M * args.N); };
  if (args.before_gelu.num_elems > 0)
    Launch(op::GeluForward{{matrix(args.c), matrix(args.before_gelu)}});
  if (args.gelu_input.num_elems > 0)
    Launch(op::GeluBackward{{matrix(args.c), matrix(args.c), matrix(args.gelu_input)}});
  if (args.column_sums.num_elems > 0)
    cuda::BiasGrad(args.column_sums, args.b, args.K, args.N, workspace_);
}

}  // namespace

std::unique_ptr<AllKernels> MakeCudaKernels(int gpu, CudaStream& stream) {
  return std::make_unique<CudaKernels>(gpu, stream);
}

}  // namespace dsat::engine
