// The CUDA backend: memory, and the kernels of layers. Those of optimizers are in
// cuda_optimizers.cc.
#include "engine/backend/cuda/cuda_kernels.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/backend/cost.h"
#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/launch_kernel.h"
#include "engine/backend/cuda/views.h"

namespace dsat::engine {
namespace {

constexpr float kEpsilon = 1e-5F;  // Of layer norm and group norm.

cuda::Conv ConvOf(const ConvShape& s) {
  return {s.N, s.H, s.W, s.in, s.out, s.kernel, s.stride, s.OutH(), s.OutW()};
}

void CheckSameSize(const Tensor& a, const Tensor& b) {
  DSAT_CHECK(a.num_elems == b.num_elems, "{} and {} elements", a.num_elems, b.num_elems);
}

static_assert(cuda::kMaxHeadChannels == kMaxCudaHeadChannels);

cuda::AttentionArgs AttentionOf(const AttentionShape& shape) {
  return {.B = shape.B, .T = shape.T, .C = shape.C, .H = shape.H, .G = shape.KvHeads()};
}

}  // namespace

std::string MissingLibrary() {
  cublaslt::Api api;
  return cublaslt::Load(api);
}

CudaKernels::CudaKernels(int gpu)
    : gpu_(gpu), marks_(std::make_shared<EventPool>(cudaEventDisableTiming)), times_(gpu) {
  CheckCuda(cudaSetDevice(gpu), "cudaSetDevice");
  sums_ = static_cast<double*>(AllocateOnGpu(2 * sizeof(double), "sums"));
}

CudaKernels::~CudaKernels() {
  cudaFree(sums_);
  cudaFree(workspace_);
}

void* CudaKernels::Workspace(int64_t bytes) {
  if (bytes <= workspace_bytes_) return workspace_;
  CheckCuda(cudaFree(workspace_), "cudaFree");
  workspace_ = nullptr;
  workspace_bytes_ = 0;
  workspace_ = AllocateOnGpu(static_cast<size_t>(bytes), "a kernel's workspace");
  workspace_bytes_ = bytes;
  return workspace_;
}

// Marks and copies come from any thread, and a new one has no GPU chosen yet.
StreamEvent CudaKernels::RecordEvent() {
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  return marks_->Record();
}

void CudaKernels::WaitEvent(const StreamEvent& event) {
  if (event == nullptr) return;
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  CheckCuda(cudaStreamWaitEvent(cuda::Stream(), EventOf(event), 0), "cudaStreamWaitEvent");
}

bool CudaKernels::QueryEvent(const StreamEvent& event) {
  return event == nullptr || engine::QueryEvent(event);
}

void CudaKernels::set_trace(Trace* trace) {
  Kernels::set_trace(trace);
  times_.set_trace(trace);
}

void CudaKernels::EndSpan(StreamEvent begin, TraceEvent event) {
  times_.EndSpan(std::move(begin), std::move(event));
}

void CudaKernels::Upload(void* device, const void* host, int64_t bytes) {
  Copy(device, host, bytes, cudaMemcpyHostToDevice);
}

void CudaKernels::Download(void* host, const void* device, int64_t bytes) {
  Copy(host, device, bytes, cudaMemcpyDeviceToHost);
}

// Not by cudaMemcpy, for which all threads' work would have to end.
void CudaKernels::Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const {
  const char* call = kind == cudaMemcpyHostToDevice ? "copy to the device" : "copy to the host";
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, cuda::Stream()), call);
  CheckCuda(cudaStreamSynchronize(cuda::Stream()), call);
}

void CudaKernels::Fill(Tensor t, float value) {
  cuda::Fill(ViewOf(t), value);
  CheckLaunch("Fill");
}

void CudaKernels::Cast(Tensor dst, Tensor src) {
  CheckSameSize(dst, src);
  cuda::Convert(ViewOf(dst), ViewOf(src));
  CheckLaunch("Cast");
}

void CudaKernels::Accumulate(Tensor dst, Tensor src) {
  CheckSameSize(dst, src);
  cuda::Accumulate(ViewOf(dst), ViewOf(src));
  CheckLaunch("Accumulate");
}

void CudaKernels::Scale(Tensor t, float factor) {
  cuda::Scale(ViewOf(t), factor);
  CheckLaunch("Scale");
}

double CudaKernels::SumOfSquares(Tensor t) {
  cuda::SumOfSquares(sums_, ViewOf(t), Workspace(cuda::SumWorkspaceBytes()));
  CheckLaunch("SumOfSquares");
  double sum = 0;
  Download(&sum, sums_, sizeof(sum));
  return sum;
}

void CudaKernels::Add(Tensor y, Tensor a, Tensor b) {
  CheckSameSize(y, a);
  CheckSameSize(y, b);
  cuda::Add(ViewOf(y), ViewOf(a), ViewOf(b));
  CheckLaunch("Add");
}

void CudaKernels::Matmul(const MatmulArgs& args) {
  args.Check();
  flops_ += MatmulFlops(args);
  if (args.M * args.N == 0) return;
  if (!MultiplyFused(args)) {
    MatmulArgs product = args;
    if (args.before_gelu.num_elems > 0) product.c = args.before_gelu;
    product.before_gelu = product.gelu_input = product.column_sums = {};
    Multiply(product);
    FinishProduct(args);
  }
  CheckLaunch("Matmul");
}

// All of it by one call of cuBLASLt, where that can.
bool CudaKernels::MultiplyFused(const MatmulArgs& args) {
  const DType from = args.a.dtype, to = args.c.dtype;
  if (from != args.b.dtype || (to != from && to != DType::kF32)) return false;
  if (args.bias.num_elems > 0 && args.bias.dtype != to) return false;
  MatmulArgs product = args;
  Tensor& sums = product.column_sums;
  if (sums.num_elems > 0) sums = {Workspace(args.N * BytesPerElem(to)), args.N, to};
  if (matmul_.TryRun(product) != 0) return false;
  if (sums.num_elems > 0) cuda::Accumulate(ViewOf(args.column_sums.Slice(0, args.N)), ViewOf(sums));
  return true;
}

// A product, its bias and its addend, by as many calls as it takes.
void CudaKernels::Multiply(MatmulArgs args) {
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

void CudaKernels::MultiplyInF32(const MatmulArgs& args) {
  constexpr int64_t kAlignment = 256 / BytesPerElem(DType::kF32);
  const auto rounded = [](int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  const int64_t sizes[] = {args.M * args.K, args.K * args.N, args.M * args.N};
  const int64_t total = rounded(sizes[0]) + rounded(sizes[1]) + rounded(sizes[2]);
  auto* next = static_cast<float*>(Workspace(total * BytesPerElem(DType::kF32)));
  MatmulArgs in_f32 = args;
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

// What goes with a product, after it.
void CudaKernels::FinishProduct(const MatmulArgs& args) {
  const auto matrix = [&](const Tensor& t) { return ViewOf(t.Slice(0, args.M * args.N)); };
  if (args.before_gelu.num_elems > 0) cuda::GeluForward(matrix(args.c), matrix(args.before_gelu));
  if (args.gelu_input.num_elems > 0)
    cuda::GeluBackward(matrix(args.c), matrix(args.c), matrix(args.gelu_input));
  if (args.column_sums.num_elems > 0) {
    cuda::BiasGrad(ViewOf(args.column_sums), ViewOf(args.b), args.K, args.N,
                   Workspace(cuda::ColumnWorkspaceBytes(args.K, args.N)));
  }
}

void CudaKernels::LayerNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                   Tensor bias, int64_t N, int64_t C) {
  DSAT_CHECK(x.num_elems >= N * C && y.num_elems >= N * C && mean.num_elems >= N &&
                 rstd.num_elems >= N && weight.num_elems >= C && bias.num_elems >= C,
             "{} x {}", N, C);
  cuda::NormForward({.y = ViewOf(y),
                     .mean = ViewOf(mean),
                     .rstd = ViewOf(rstd),
                     .x = ViewOf(x),
                     .weight = ViewOf(weight),
                     .bias = ViewOf(bias),
                     .N = N,
                     .C = C,
                     .eps = kEpsilon});
  CheckLaunch("LayerNormForward");
}

void CudaKernels::LayerNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                                    Tensor weight, Tensor mean, Tensor rstd, int64_t N, int64_t C,
                                    bool accumulate_dx) {
  DSAT_CHECK(x.num_elems >= N * C && dx.num_elems >= N * C && dy.num_elems >= N * C, "{} x {}", N,
             C);
  cuda::NormBackward({.dx = ViewOf(dx),
                      .dweight = ViewOf(dweight),
                      .dbias = ViewOf(dbias),
                      .dy = ViewOf(dy),
                      .x = ViewOf(x),
                      .weight = ViewOf(weight),
                      .mean = ViewOf(mean),
                      .rstd = ViewOf(rstd),
                      .N = N,
                      .C = C,
                      .accumulate_dx = accumulate_dx},
                     Workspace(cuda::ColumnWorkspaceBytes(N, C)));
  CheckLaunch("LayerNormBackward");
}

void CudaKernels::RmsNormForward(Tensor y, Tensor rstd, Tensor x, Tensor weight, int64_t N,
                                 int64_t C, float eps) {
  DSAT_CHECK(x.num_elems >= N * C && y.num_elems >= N * C && rstd.num_elems >= N, "{} x {}", N, C);
  cuda::NormForward({.y = ViewOf(y),
                     .mean = {},
                     .rstd = ViewOf(rstd),
                     .x = ViewOf(x),
                     .weight = ViewOf(weight),
                     .bias = {},
                     .N = N,
                     .C = C,
                     .eps = eps});
  CheckLaunch("RmsNormForward");
}

void CudaKernels::RmsNormBackward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight,
                                  Tensor rstd, int64_t N, int64_t C, bool accumulate_dx) {
  DSAT_CHECK(x.num_elems >= N * C && dx.num_elems >= N * C && dy.num_elems >= N * C, "{} x {}", N,
             C);
  cuda::NormBackward({.dx = ViewOf(dx),
                      .dweight = ViewOf(dweight),
                      .dbias = {},
                      .dy = ViewOf(dy),
                      .x = ViewOf(x),
                      .weight = ViewOf(weight),
                      .mean = {},
                      .rstd = ViewOf(rstd),
                      .N = N,
                      .C = C,
                      .accumulate_dx = accumulate_dx},
                     Workspace(cuda::ColumnWorkspaceBytes(N, C)));
  CheckLaunch("RmsNormBackward");
}

void CudaKernels::GroupNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                   Tensor bias, const GroupNormShape& s) {
  DSAT_CHECK(s.G > 0 && s.C % s.G == 0 && x.num_elems >= s.NumElems(), "{} channels, {} groups",
             s.C, s.G);
  cuda::GroupNormForward({.y = ViewOf(y),
                          .mean = ViewOf(mean),
                          .rstd = ViewOf(rstd),
                          .x = ViewOf(x),
                          .weight = ViewOf(weight),
                          .bias = ViewOf(bias),
                          .eps = kEpsilon},
                         {s.N, s.P, s.C, s.G});
  CheckLaunch("GroupNormForward");
}

void CudaKernels::GroupNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                                    Tensor weight, Tensor mean, Tensor rstd,
                                    const GroupNormShape& s) {
  DSAT_CHECK(s.G > 0 && s.C % s.G == 0 && x.num_elems >= s.NumElems(), "{} channels, {} groups",
             s.C, s.G);
  cuda::GroupNormBackward({.dx = ViewOf(dx),
                           .dweight = ViewOf(dweight),
                           .dbias = ViewOf(dbias),
                           .dy = ViewOf(dy),
                           .x = ViewOf(x),
                           .weight = ViewOf(weight),
                           .mean = ViewOf(mean),
                           .rstd = ViewOf(rstd)},
                          {s.N, s.P, s.C, s.G},
                          Workspace(cuda::ColumnWorkspaceBytes(s.N * s.P, s.C)));
  CheckLaunch("GroupNormBackward");
}

void CudaKernels::GeluForward(Tensor y, Tensor x) {
  CheckSameSize(y, x);
  cuda::GeluForward(ViewOf(y), ViewOf(x));
  CheckLaunch("GeluForward");
}

void CudaKernels::GeluBackward(Tensor dx, Tensor dy, Tensor x) {
  CheckSameSize(dx, dy);
  CheckSameSize(dx, x);
  cuda::GeluBackward(ViewOf(dx), ViewOf(dy), ViewOf(x));
  CheckLaunch("GeluBackward");
}

void CudaKernels::ReluForward(Tensor y, Tensor x) {
  CheckSameSize(y, x);
  cuda::ReluForward(ViewOf(y), ViewOf(x));
  CheckLaunch("ReluForward");
}

void CudaKernels::ReluBackward(Tensor dx, Tensor dy, Tensor x) {
  CheckSameSize(dx, dy);
  CheckSameSize(dx, x);
  cuda::ReluBackward(ViewOf(dx), ViewOf(dy), ViewOf(x));
  CheckLaunch("ReluBackward");
}

void CudaKernels::SwigluForward(Tensor y, Tensor x, int64_t N, int64_t F) {
  DSAT_CHECK(y.num_elems >= N * F && x.num_elems >= 2 * N * F, "{} x {}", N, F);
  cuda::SwigluForward(ViewOf(y), ViewOf(x), N, F);
  CheckLaunch("SwigluForward");
}

void CudaKernels::SwigluBackward(Tensor dx, Tensor dy, Tensor x, int64_t N, int64_t F) {
  DSAT_CHECK(dy.num_elems >= N * F && x.num_elems >= 2 * N * F && dx.num_elems >= 2 * N * F,
             "{} x {}", N, F);
  cuda::SwigluBackward(ViewOf(dx), ViewOf(dy), ViewOf(x), N, F);
  CheckLaunch("SwigluBackward");
}

void CudaKernels::EmbeddingForward(Tensor y, const int32_t* tokens, Tensor wte, Tensor wpe,
                                   int64_t B, int64_t T, int64_t C) {
  DSAT_CHECK(y.num_elems >= B * T * C, "y {} of {} x {} x {}", y.num_elems, B, T, C);
  cuda::EmbeddingForward(ViewOf(y), tokens, ViewOf(wte), ViewOf(wpe), B, T, C);
  CheckLaunch("EmbeddingForward");
}

void CudaKernels::EmbeddingBackward(Tensor dwte, Tensor dwpe, Tensor dy, const int32_t* tokens,
                                    int64_t B, int64_t T, int64_t C) {
  DSAT_CHECK(dy.num_elems >= B * T * C && B * T <= std::numeric_limits<int32_t>::max(),
             "dy {} of {} x {} x {}", dy.num_elems, B, T, C);
  cuda::EmbeddingBackward(ViewOf(dwte), ViewOf(dwpe), ViewOf(dy), tokens, B, T, C,
                          Workspace(cuda::EmbeddingWorkspaceBytes(B * T, C)));
  CheckLaunch("EmbeddingBackward");
}

void CudaKernels::TokenWindows(int32_t* windows, const int32_t* tokens, int64_t B, int64_t T,
                               int64_t context) {
  cuda::TokenWindows(windows, tokens, B, T, context);
  CheckLaunch("TokenWindows");
}

void CudaKernels::RotateInPlace(Tensor x, std::span<const float> frequencies, bool negative,
                                const RotaryShape& s) {
  DSAT_CHECK(2 * std::ssize(frequencies) == s.head_channels &&
                 std::ssize(frequencies) <= cuda::kMaxRotaryPairs &&
                 s.heads * s.head_channels <= s.stride && x.num_elems >= s.B * s.T * s.stride,
             "{} channels, {} frequencies", s.head_channels, frequencies.size());
  cuda::RotaryArgs args{.B = s.B,
                        .T = s.T,
                        .stride = s.stride,
                        .heads = s.heads,
                        .head_channels = s.head_channels,
                        .sign = negative ? -1.0F : 1.0F};
  std::ranges::copy(frequencies, args.frequencies);
  cuda::RotateInPlace(ViewOf(x), args);
  CheckLaunch("RotateInPlace");
}

void CudaKernels::ConvForward(Tensor y, Tensor x, Tensor weight, const ConvShape& shape) {
  flops_ += ConvFlops(shape);
  cuda::ConvForward(ViewOf(y), ViewOf(x), ViewOf(weight), ConvOf(shape));
  CheckLaunch("ConvForward");
}

void CudaKernels::ConvInputGrad(Tensor dx, Tensor dy, Tensor weight, const ConvShape& shape) {
  flops_ += ConvFlops(shape);
  cuda::ConvInputGrad(ViewOf(dx), ViewOf(dy), ViewOf(weight), ConvOf(shape));
  CheckLaunch("ConvInputGrad");
}

void CudaKernels::ConvWeightGrad(Tensor dweight, Tensor dy, Tensor x, const ConvShape& shape) {
  flops_ += ConvFlops(shape);
  cuda::ConvWeightGrad(ViewOf(dweight), ViewOf(dy), ViewOf(x), ConvOf(shape));
  CheckLaunch("ConvWeightGrad");
}

void CudaKernels::MeanPoolForward(Tensor y, Tensor x, int64_t N, int64_t P, int64_t C) {
  cuda::MeanPoolForward(ViewOf(y), ViewOf(x), N, P, C);
  CheckLaunch("MeanPoolForward");
}

void CudaKernels::MeanPoolBackward(Tensor dx, Tensor dy, int64_t N, int64_t P, int64_t C) {
  cuda::MeanPoolBackward(ViewOf(dx), ViewOf(dy), N, P, C);
  CheckLaunch("MeanPoolBackward");
}

int64_t CudaKernels::AttentionScratchBytes(const AttentionShape& shape) {
  return CudaAttentionScratchBytes(shape);
}

void CudaKernels::AttentionForward(Tensor out, Tensor lse, Tensor qkv, Tensor,
                                   const AttentionShape& shape) {
  flops_ += AttentionForwardFlops(shape);
  DSAT_CHECK(shape.HeadChannels() <= kMaxCudaHeadChannels, "{} channels", shape.HeadChannels());
  cuda::AttentionArgs args = AttentionOf(shape);
  args.out = ViewOf(out);
  args.lse = ViewOf(lse);
  args.qkv = ViewOf(qkv);
  cuda::AttentionForward(args);
  CheckLaunch("AttentionForward");
}

void CudaKernels::AttentionBackward(Tensor dqkv, Tensor dout, Tensor out, Tensor qkv, Tensor lse,
                                    Tensor scratch, const AttentionShape& shape) {
  flops_ += AttentionBackwardFlops(shape);
  DSAT_CHECK(scratch.bytes() >= AttentionScratchBytes(shape), "{} bytes", scratch.bytes());
  cuda::AttentionArgs args = AttentionOf(shape);
  args.out = ViewOf(out);
  args.lse = ViewOf(lse);
  args.qkv = ViewOf(qkv);
  args.dqkv = ViewOf(dqkv);
  args.dout = ViewOf(dout);
  args.delta = ViewOf(scratch);
  cuda::AttentionBackward(args);
  CheckLaunch("AttentionBackward");
}

double CudaKernels::CrossEntropyInPlace(Tensor logits, const int32_t* targets, int64_t N, int64_t V,
                                        int64_t V_used, float grad_scale) {
  DSAT_CHECK(logits.num_elems >= N * V && V_used > 0 && V_used <= V, "logits {} of {} x {} ({})",
             logits.num_elems, N, V, V_used);
  cuda::CrossEntropyInPlace(sums_, ViewOf(logits), targets, N, V, V_used, grad_scale,
                            Workspace(cuda::LossWorkspaceBytes(N)));
  CheckLaunch("CrossEntropyInPlace");
  double sum = 0;
  Download(&sum, sums_, sizeof(sum));
  return sum;
}

}  // namespace dsat::engine
