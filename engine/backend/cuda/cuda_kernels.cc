// The CUDA backend: kernels of layers. Those of optimizers are in cuda_optimizers.cc.
#include "engine/backend/cuda/cuda_kernels.h"

#include <algorithm>
#include <initializer_list>
#include <mutex>
#include <utility>

#include "engine/backend/any_kernels.h"
#include "engine/backend/cost.h"
#include "engine/backend/cuda/matmul.h"
#include "engine/backend/cuda/views.h"
#include "engine/core/device_kind.h"

namespace dsat::engine {
namespace {

constexpr float kEpsilon = 1e-5F;  // The epsilon of layer norm and group norm.

cuda::Conv ConvOf(const ConvShape& s) {
  return {s.N, s.H, s.W, s.in, s.out, s.kernel, s.stride, s.OutH(), s.OutW()};
}

// The operands of a normalization, of which RMS norm has no mean and no bias.
template <typename Op>
cuda::NormArgs NormOf(const Op& op, int64_t N, int64_t C, float eps) {
  cuda::NormArgs args = {.y = ViewOf(op.y), .rstd = ViewOf(op.rstd), .x = ViewOf(op.x)};
  args.weight = ViewOf(op.weight);
  if constexpr (requires { op.mean; }) {
    args.mean = ViewOf(op.mean);
    args.bias = ViewOf(op.bias);
  }
  args.N = N;
  args.C = C;
  args.eps = eps;
  return args;
}

template <typename Op>
cuda::NormGradArgs NormGradOf(const Op& op, int64_t N, int64_t C, bool accumulate_dx) {
  cuda::NormGradArgs args = {.dx = ViewOf(op.dx), .dweight = ViewOf(op.dweight)};
  args.dy = ViewOf(op.dy);
  args.x = ViewOf(op.x);
  args.weight = ViewOf(op.weight);
  args.rstd = ViewOf(op.rstd);
  if constexpr (requires { op.mean; }) {
    args.mean = ViewOf(op.mean);
    args.dbias = ViewOf(op.dbias);
  }
  args.N = N;
  args.C = C;
  args.accumulate_dx = accumulate_dx;
  return args;
}

cuda::GroupShape GroupsOf(const GroupNormShape& s) {
  return {s.N, s.P, s.C, s.G};
}

static_assert(cuda::kMaxHeadChannels == kMaxCudaHeadChannels);

cuda::AttentionArgs AttentionOf(const AttentionShape& shape) {
  return {.B = shape.B, .T = shape.T, .C = shape.C, .H = shape.H, .G = shape.KvHeads()};
}

// Calls launch(args) for as many sequences at a time as a grid has in the dimension that the
// kernels use for them.
template <typename Fn>
void ForSequences(const cuda::AttentionArgs& all, const Fn& launch) {
  constexpr int64_t kMost = 65535;
  const int64_t hd = all.C / all.H, elem_bytes = all.qkv.type == cuda::Type::kF32 ? 4 : 2;
  for (int64_t begin = 0; begin < all.B; begin += kMost) {
    cuda::AttentionArgs part = all;
    part.B = std::min(kMost, all.B - begin);
    const auto skip = [&](std::initializer_list<cuda::View*> views, int64_t sequence_bytes) {
      for (cuda::View* view : views)
        if (view->data != nullptr)
          view->data = static_cast<char*>(view->data) + begin * sequence_bytes;
    };
    skip({&part.out, &part.dout}, all.T * all.C * elem_bytes);
    skip({&part.qkv, &part.dqkv}, all.T * (all.C + 2 * all.G * hd) * elem_bytes);
    skip({&part.lse, &part.delta}, all.H * all.T * static_cast<int64_t>(sizeof(float)));
    launch(part);
  }
}

class CudaLayers final : public AnyLayerKernels<CudaLayers> {
 public:
  explicit CudaLayers(std::shared_ptr<CudaWorkspace> workspace)
      : workspace_(std::move(workspace)) {}

  int64_t WorkspaceBytes() const override { return kCudaWorkspaceBytes; }
  int64_t AttentionScratchBytes(const AttentionShape& shape) const override {
    return CudaAttentionScratchBytes(shape);
  }
  template <typename Op>
  ResultOf<Op> RunAny(const Op& op) {
    return LaunchAndCheck(*this, op);
  }

  static void Launch(const op::Fill& op) { cuda::Fill(ViewOf(op.t), op.value); }
  static void Launch(const op::Cast& op) { cuda::Convert(ViewOf(op.dst), ViewOf(op.src)); }
  static void Launch(const op::Accumulate& op) { cuda::Accumulate(ViewOf(op.dst), ViewOf(op.src)); }
  static void Launch(const op::Scale& op) { cuda::Scale(ViewOf(op.t), op.factor); }
  void Launch(const op::SumOfSquares& op) {
    cuda::SumOfSquares(op.sum, ViewOf(op.t), Workspace(cuda::SumWorkspaceBytes()));
  }
  static void Launch(const op::Add& op) { cuda::Add(ViewOf(op.y), ViewOf(op.a), ViewOf(op.b)); }

  void Launch(const op::Matmul& args) {
    if (IsFusible(args) && matmul_.IsNew(FusedOf(args))) Choose(args);
    if (!MultiplyFused(args)) MultiplyApart(args);
  }

  static void Launch(const op::LayerNormForward& op) {
    cuda::NormForward(NormOf(op, op.N, op.C, kEpsilon));
  }
  void Launch(const op::LayerNormBackward& op) {
    cuda::NormBackward(NormGradOf(op, op.N, op.C, op.accumulate_dx),
                       Workspace(cuda::NormWorkspaceBytes(op.N, op.C)));
  }
  static void Launch(const op::RmsNormForward& op) {
    cuda::NormForward(NormOf(op, op.N, op.C, op.eps));
  }
  void Launch(const op::RmsNormBackward& op) {
    cuda::NormBackward(NormGradOf(op, op.N, op.C, op.accumulate_dx),
                       Workspace(cuda::NormWorkspaceBytes(op.N, op.C)));
  }
  static void Launch(const op::GroupNormForward& op) {
    cuda::GroupNormForward(NormOf(op, 0, 0, kEpsilon), GroupsOf(op.shape));
  }
  void Launch(const op::GroupNormBackward& op) {
    cuda::GroupNormBackward(NormGradOf(op, 0, 0, false), GroupsOf(op.shape),
                            ColumnWorkspace(op.shape.N * op.shape.P, op.shape.C));
  }

  static void Launch(const op::GeluForward& op) { cuda::GeluForward(ViewOf(op.y), ViewOf(op.x)); }
  static void Launch(const op::GeluBackward& op) {
    cuda::GeluBackward(ViewOf(op.dx), ViewOf(op.dy), ViewOf(op.x));
  }
  static void Launch(const op::ReluForward& op) { cuda::ReluForward(ViewOf(op.y), ViewOf(op.x)); }
  static void Launch(const op::ReluBackward& op) {
    cuda::ReluBackward(ViewOf(op.dx), ViewOf(op.dy), ViewOf(op.x));
  }
  static void Launch(const op::SwigluForward& op) {
    cuda::SwigluForward(ViewOf(op.y), ViewOf(op.x), op.N, op.F);
  }
  static void Launch(const op::SwigluBackward& op) {
    cuda::SwigluBackward(ViewOf(op.dx), ViewOf(op.dy), ViewOf(op.x), op.N, op.F);
  }

  static void Launch(const op::EmbeddingForward& op) {
    cuda::EmbeddingForward(ViewOf(op.y), op.tokens, ViewOf(op.wte), ViewOf(op.wpe), op.B, op.T,
                           op.C);
  }
  void Launch(const op::EmbeddingBackward& op) {
    cuda::EmbeddingBackward(ViewOf(op.dwte), ViewOf(op.dwpe), ViewOf(op.dy), op.tokens, op.B, op.T,
                            op.C, Workspace(cuda::EmbeddingWorkspaceBytes(op.B * op.T, op.C)));
  }
  static void Launch(const op::TokenWindows& op) {
    cuda::TokenWindows(op.windows, op.tokens, op.B, op.T, op.context);
  }

  static void Launch(const op::RotateInPlace& op) {
    DSAT_CHECK(std::ssize(op.frequencies) <= cuda::kMaxRotaryPairs, "{} frequencies",
               op.frequencies.size());
    cuda::RotaryArgs args{.B = op.shape.B,
                          .T = op.shape.T,
                          .stride = op.shape.stride,
                          .heads = op.shape.heads,
                          .head_channels = op.shape.head_channels,
                          .sign = op.negative ? -1.0F : 1.0F};
    std::ranges::copy(op.frequencies, args.frequencies);
    cuda::RotateInPlace(ViewOf(op.x), args);
  }

  static void Launch(const op::ConvForward& op) {
    cuda::ConvForward(ViewOf(op.y), ViewOf(op.x), ViewOf(op.weight), ConvOf(op.shape));
  }
  static void Launch(const op::ConvInputGrad& op) {
    cuda::ConvInputGrad(ViewOf(op.dx), ViewOf(op.dy), ViewOf(op.weight), ConvOf(op.shape));
  }
  static void Launch(const op::ConvWeightGrad& op) {
    cuda::ConvWeightGrad(ViewOf(op.dweight), ViewOf(op.dy), ViewOf(op.x), ConvOf(op.shape));
  }
  static void Launch(const op::MeanPoolForward& op) {
    cuda::MeanPoolForward(ViewOf(op.y), ViewOf(op.x), op.N, op.P, op.C);
  }
  static void Launch(const op::MeanPoolBackward& op) {
    cuda::MeanPoolBackward(ViewOf(op.dx), ViewOf(op.dy), op.N, op.P, op.C);
  }

  void Launch(const op::AttentionForward& op) {
    DSAT_CHECK(op.shape.HeadChannels() <= kMaxCudaHeadChannels);
    cuda::AttentionArgs args = AttentionOf(op.shape);
    args.out = ViewOf(op.out);
    args.lse = ViewOf(op.lse);
    args.qkv = ViewOf(op.qkv);
    ForSequences(args, [](const cuda::AttentionArgs& part) { cuda::AttentionForward(part); });
  }
  void Launch(const op::AttentionBackward& op) {
    DSAT_CHECK(op.scratch.bytes() >= AttentionScratchBytes(op.shape), "{} bytes",
               op.scratch.bytes());
    cuda::AttentionArgs args = AttentionOf(op.shape);
    args.out = ViewOf(op.out);
    args.lse = ViewOf(op.lse);
    args.qkv = ViewOf(op.qkv);
    args.dqkv = ViewOf(op.dqkv);
    args.dout = ViewOf(op.dout);
    args.delta = ViewOf(op.scratch);
    if (!cuda::AttentionBackwardHasRoom(args)) {
      Throw(ErrorCode::kUnimplemented,
            "attention: the gradients of heads of {} channels in this precision need more shared "
            "memory than a block of this GPU has: use bf16 or fp16 and a number of channels that 8 "
            "divides, or more heads",
            op.shape.HeadChannels());
    }
    ForSequences(args, cuda::AttentionBackward);
  }

  void Launch(const op::CrossEntropyInPlace& op) {
    cuda::CrossEntropyInPlace(op.loss, ViewOf(op.logits), op.targets, op.N, op.V, op.V_used,
                              op.grad_scale, Workspace(cuda::LossWorkspaceBytes(op.N)));
  }

 private:
  void* Workspace(int64_t bytes) { return workspace_->Get(bytes); }
  void* ColumnWorkspace(int64_t N, int64_t C) {
    return Workspace(cuda::ColumnWorkspaceBytes(N, C));
  }
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
      fused.column_sums = {Workspace(args.N * BytesPerElem(args.c.dtype)), args.N, args.c.dtype};
    }
    return fused;
  }
  void FinishProduct(const op::Matmul& args);

  const std::shared_ptr<CudaWorkspace> workspace_;
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
void CudaLayers::Choose(const op::Matmul& args) {
  constexpr int64_t kSlack = 64;
  static std::mutex choosing;
  workspace_->stream().WaitWatched();  // Not while others wait: it may be for what they do next.
  const std::lock_guard lock(choosing);
  if (!matmul_.IsNew(FusedOf(args))) return;
  op::Matmul trial = args;
  const bool in_place = args.addend.num_elems > 0 && args.addend.data == args.c.data;
  const int64_t sum_bytes = args.column_sums.bytes();
  const int64_t result_bytes = in_place ? args.M * args.N * BytesPerElem(args.c.dtype) : 0;
  char* scratch = nullptr;
  if (result_bytes + sum_bytes > 0) {
    void* block = nullptr;
    const int64_t sums_end = (sum_bytes + kSlack - 1) / kSlack * kSlack;
    if (cudaMalloc(&block, static_cast<size_t>(sums_end + kSlack + result_bytes)) != cudaSuccess) {
      cudaGetLastError();
      return matmul_.Keep(FusedOf(args));
    }
    scratch = static_cast<char*>(block);
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
bool CudaLayers::MultiplyFused(const op::Matmul& args) {
  if (!IsFusible(args)) return false;
  const op::Matmul fused = FusedOf(args);
  if (matmul_.TryRun(fused) != 0) return false;
  const Tensor& sums = fused.column_sums;
  if (sums.num_elems > 0) cuda::Accumulate(ViewOf(args.column_sums.Slice(0, args.N)), ViewOf(sums));
  return true;
}

void CudaLayers::MultiplyApart(const op::Matmul& args) {
  Multiply(ProductOf(args));
  FinishProduct(args);
}

// A product, its bias and its addend, by as many calls as it takes.
void CudaLayers::Multiply(op::Matmul args) {
  const DType from = args.a.dtype, to = args.c.dtype;
  const Tensor bias = args.bias;
  const bool apart = bias.num_elems > 0 && bias.dtype != to;
  // Only in f32 may a bias be added later: the result is rounded once.
  if (from != args.b.dtype || (to != DType::kF32 && (to != from || apart)))
    return MultiplyInF32(args);
  if (apart) args.bias = {};
  matmul_.Run(args);
  if (apart) cuda::AddBias(ViewOf(args.c), ViewOf(bias), args.M, args.N);
}

void CudaLayers::MultiplyInF32(const op::Matmul& args) {
  constexpr int64_t kAlignment = 256 / BytesPerElem(DType::kF32);
  const auto rounded = [](int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  const int64_t sizes[] = {args.M * args.K, args.K * args.N, args.M * args.N};
  const int64_t total = rounded(sizes[0]) + rounded(sizes[1]) + rounded(sizes[2]);
  auto* next = static_cast<float*>(Workspace(total * BytesPerElem(DType::kF32)));
  op::Matmul in_f32 = args;
  Tensor* const copies[] = {&in_f32.a, &in_f32.b, &in_f32.c};
  const Tensor originals[] = {args.a, args.b, args.addend};
  for (int i = 0; i < 3; ++i) {
    *copies[i] = {next, sizes[i], DType::kF32};
    next += rounded(sizes[i]);
    if (originals[i].num_elems > 0)
      cuda::Convert(ViewOf(*copies[i]), ViewOf(originals[i].Slice(0, sizes[i])));
  }
  if (args.addend.num_elems > 0) in_f32.addend = in_f32.c;
  Multiply(in_f32);
  cuda::Convert(ViewOf(args.c.Slice(0, sizes[2])), ViewOf(in_f32.c));
}

// Runs the operations that follow a product.
void CudaLayers::FinishProduct(const op::Matmul& args) {
  const auto matrix = [&](const Tensor& t) { return ViewOf(t.Slice(0, args.M * args.N)); };
  if (args.before_gelu.num_elems > 0) cuda::GeluForward(matrix(args.c), matrix(args.before_gelu));
  if (args.gelu_input.num_elems > 0)
    cuda::GeluBackward(matrix(args.c), matrix(args.c), matrix(args.gelu_input));
  if (args.column_sums.num_elems > 0) {
    cuda::BiasGrad(ViewOf(args.column_sums), ViewOf(args.b), args.K, args.N,
                   Workspace(cuda::BiasGradWorkspaceBytes(args.K, args.N)));
  }
}

}  // namespace

std::string FindCublas(std::string& path) {
  cublaslt::Api api;
  const std::string problem = cublaslt::Load(api);
  path = api.path;
  return problem;
}

std::unique_ptr<LayerKernels> MakeCudaLayers(std::shared_ptr<CudaWorkspace> workspace) {
  return std::make_unique<CudaLayers>(std::move(workspace));
}

}  // namespace dsat::engine
