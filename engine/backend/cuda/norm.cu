// Layer norm and RMS norm: a warp per row.
#include "engine/backend/cuda/column_sums.h"

namespace dsat::engine::cuda {
namespace {

// One row's numbers: x normalised is (x - mean) * rstd, with mean 0 for RMS norm.
template <typename T>
struct Rows {
  const T* x;
  const T* weight;
  const float* mean;  // nullptr: RMS norm.
  const float* rstd;
  int64_t C;

  __device__ float Normed(int64_t row, int64_t c) const {
    const float m = mean == nullptr ? 0.0F : mean[row];
    return (ToFloat(x[row * C + c]) - m) * rstd[row];
  }
};

constexpr int kRows = kThreads / kWarp;  // Of a block.

__device__ int64_t Row() {
  return int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
}

template <typename T>
__global__ void ForwardKernel(T* y, float* mean, float* rstd, const T* x, const T* weight,
                              const T* bias, int64_t N, int64_t C, float eps) {
  const int64_t row = Row();
  const int lane = threadIdx.x % kWarp;
  if (row >= N) return;
  const T* in = x + row * C;
  float m = 0.0F;
  if (mean != nullptr) {
    float sum = 0.0F;
    for (int64_t c = lane; c < C; c += kWarp)
      sum += ToFloat(in[c]);
    m = WarpReduce(sum, Plus()) / static_cast<float>(C);
  }
  float squares = 0.0F;
  for (int64_t c = lane; c < C; c += kWarp) {
    const float centred = ToFloat(in[c]) - m;
    squares += centred * centred;
  }
  squares = WarpReduce(squares, Plus());
  const float r = 1.0F / sqrtf(squares / static_cast<float>(C) + eps);
  for (int64_t c = lane; c < C; c += kWarp) {
    const float b = bias == nullptr ? 0.0F : ToFloat(bias[c]);
    y[row * C + c] = FromFloat<T>((ToFloat(in[c]) - m) * r * ToFloat(weight[c]) + b);
  }
  if (lane != 0) return;
  if (mean != nullptr) mean[row] = m;
  rstd[row] = r;
}

template <typename T>
__global__ void InputGradKernel(T* dx, const T* dy, Rows<T> rows, int64_t N, bool accumulate) {
  const int64_t row = Row();
  const int lane = threadIdx.x % kWarp;
  if (row >= N) return;
  const int64_t C = rows.C;
  const T* grad = dy + row * C;
  float sum = 0.0F;       // Of dy * weight,
  float sum_norm = 0.0F;  // and of that times x normalised.
  for (int64_t c = lane; c < C; c += kWarp) {
    const float dnorm = ToFloat(grad[c]) * ToFloat(rows.weight[c]);
    sum += dnorm;
    sum_norm += dnorm * rows.Normed(row, c);
  }
  const float count = static_cast<float>(C);
  const float mean_dnorm = rows.mean == nullptr ? 0.0F : WarpReduce(sum, Plus()) / count;
  const float mean_norm = WarpReduce(sum_norm, Plus()) / count;
  const float r = rows.rstd[row];
  for (int64_t c = lane; c < C; c += kWarp) {
    const float dnorm = ToFloat(grad[c]) * ToFloat(rows.weight[c]);
    const float g = (dnorm - mean_dnorm - rows.Normed(row, c) * mean_norm) * r;
    T& out = dx[row * C + c];
    out = FromFloat<T>(accumulate ? ToFloat(out) + g : g);
  }
}

template <typename T>
struct ParamGrads {
  Rows<T> rows;
  const T* dy;
  __device__ float2 operator()(int64_t row, int64_t c) const {
    const float g = ToFloat(dy[row * rows.C + c]);
    return {g * rows.Normed(row, c), g};
  }
};

unsigned NumBlocksOf(int64_t num_rows) {
  return static_cast<unsigned>((num_rows + kRows - 1) / kRows);
}

}  // namespace

void NormForward(const NormArgs& args) {
  if (args.N == 0) return;
  Visit(args.x.type, [&](auto type) {
    using T = decltype(type);
    Launch(ForwardKernel<T>, {NumBlocksOf(args.N), kThreads}, Data<T>(args.y), args.mean.f32(),
           args.rstd.f32(), Data<T>(args.x), Data<T>(args.weight), Data<T>(args.bias), args.N,
           args.C, args.eps);
  });
}

void NormBackward(const NormGradArgs& args, void* workspace) {
  if (args.N == 0) return;
  Visit(args.x.type, [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows{Data<T>(args.x), Data<T>(args.weight), args.mean.f32(), args.rstd.f32(),
                       args.C};
    // First: dx may take dy's place.
    SumColumns<T>(args.dweight, args.dbias, args.N, args.C, ParamGrads<T>{rows, Data<T>(args.dy)},
                  workspace);
    Launch(InputGradKernel<T>, {NumBlocksOf(args.N), kThreads}, Data<T>(args.dx), Data<T>(args.dy),
           rows, args.N, args.accumulate_dx);
  });
}

}  // namespace dsat::engine::cuda
