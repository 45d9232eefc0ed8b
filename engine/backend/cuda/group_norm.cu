// Group norm of images (N, P, C): a block per image and group.
#include "engine/backend/cuda/column_sums.h"

namespace dsat::engine::cuda {
namespace {

// The numbers of one group of one image: P pixels of C / G channels.
struct Group {
  GroupNormShape shape;

  __device__ int64_t image() const { return blockIdx.x / shape.G; }
  __device__ int64_t channels() const { return shape.C / shape.G; }
  __device__ int64_t count() const { return shape.P * channels(); }
  __device__ int64_t Channel(int64_t i) const {
    return blockIdx.x % shape.G * channels() + i % channels();
  }
  // The index of the group's i-th element among the elements of all images.
  __device__ int64_t At(int64_t i) const {
    return (image() * shape.P + i / channels()) * shape.C + Channel(i);
  }
};

template <typename T>
__global__ void ForwardKernel(T* y, float* mean, float* rstd, const T* x, const T* weight,
                              const T* bias, Group group, float eps) {
  const auto count = static_cast<double>(group.count());
  double sum = 0;
  for (int64_t i = threadIdx.x; i < group.count(); i += kThreads)
    sum += ToFloat(x[group.At(i)]);
  const auto m = static_cast<float>(BlockReduce(sum, Plus()) / count);
  double squares = 0;
  for (int64_t i = threadIdx.x; i < group.count(); i += kThreads) {
    const float centered = ToFloat(x[group.At(i)]) - m;
    squares += centered * centered;
  }
  const auto variance = static_cast<float>(BlockReduce(squares, Plus()) / count);
  const float r = 1.0F / sqrtf(variance + eps);
  for (int64_t i = threadIdx.x; i < group.count(); i += kThreads) {
    const int64_t c = group.Channel(i);
    y[group.At(i)] =
        FromFloat<T>((ToFloat(x[group.At(i)]) - m) * (r * ToFloat(weight[c])) + ToFloat(bias[c]));
  }
  if (threadIdx.x != 0) return;
  mean[blockIdx.x] = m;
  rstd[blockIdx.x] = r;
}

template <typename T>
__global__ void InputGradKernel(T* dx, const T* dy, const T* x, const T* weight, const float* mean,
                                const float* rstd, Group group) {
  const float m = mean[blockIdx.x];
  const float r = rstd[blockIdx.x];
  double sum = 0;       // The sum of dy * weight.
  double sum_norm = 0;  // The sum of dy * weight * normalized x.
  for (int64_t i = threadIdx.x; i < group.count(); i += kThreads) {
    const float dnorm = ToFloat(dy[group.At(i)]) * ToFloat(weight[group.Channel(i)]);
    sum += dnorm;
    sum_norm += dnorm * ((ToFloat(x[group.At(i)]) - m) * r);
  }
  const auto count = static_cast<double>(group.count());
  const auto mean_dnorm = static_cast<float>(BlockReduce(sum, Plus()) / count);
  const auto mean_norm = static_cast<float>(BlockReduce(sum_norm, Plus()) / count);
  for (int64_t i = threadIdx.x; i < group.count(); i += kThreads) {
    const int64_t at = group.At(i);
    const float norm = (ToFloat(x[at]) - m) * r;
    const float dnorm = ToFloat(dy[at]) * ToFloat(weight[group.Channel(i)]);
    dx[at] = FromFloat<T>((dnorm - mean_dnorm - norm * mean_norm) * r);
  }
}

// Rows are pixels of all images.
template <typename T>
struct ParamGrads {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  GroupNormShape shape;

  __device__ float2 operator()(int64_t row, int64_t c) const {
    const int64_t group = row / shape.P * shape.G + c / (shape.C / shape.G);
    const float g = ToFloat(dy[row * shape.C + c]);
    return {g * ((ToFloat(x[row * shape.C + c]) - mean[group]) * rstd[group]), g};
  }
};

}  // namespace

template <>
void RunOp(const op::GroupNormForward& op, CudaWorkspace&) {
  const GroupNormShape& shape = op.shape;
  Visit(op.x.dtype, [&]<typename T>(T) {
    Launch(ForwardKernel<T>, {static_cast<unsigned>(shape.N * shape.G), kThreads}, op.y, op.mean,
           op.rstd, op.x, op.weight, op.bias, Group{shape}, kNormEpsilon);
  });
}

template <>
void RunOp(const op::GroupNormBackward& op, CudaWorkspace& workspace) {
  const GroupNormShape& shape = op.shape;
  Visit(op.x.dtype, [&]<typename T>(T) {
    const auto *mean = Data<float>(op.mean), *rstd = Data<float>(op.rstd);
    const ParamGrads<T> grads{Data<T>(op.dy), Data<T>(op.x), mean, rstd, shape};
    // First: dx may take dy's place.
    SumColumns<T>(op.dweight, op.dbias, shape.N * shape.P, shape.C, grads, workspace);
    Launch(InputGradKernel<T>, {static_cast<unsigned>(shape.N * shape.G), kThreads}, op.dx, op.dy,
           op.x, op.weight, mean, rstd, Group{shape});
  });
}

}  // namespace dsat::engine::cuda
