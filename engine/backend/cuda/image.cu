// Convolutions of images (N, H, W, C), each output by one thread, and the mean over pixels.
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

struct Conv : ConvShape {
  int64_t out_h, out_w;
};
Conv ConvOf(const ConvShape& shape) {
  return {shape, shape.OutH(), shape.OutW()};
}

// weight (out, in, kernel, kernel).
__device__ int64_t WeightAt(const Conv& s, int64_t out, int64_t in, int64_t ky, int64_t kx) {
  return ((out * s.in + in) * s.kernel + ky) * s.kernel + kx;
}

template <typename T>
__global__ void ForwardKernel(T* y, const T* x, const T* weight, Conv s) {
  const int64_t n = s.N * s.out_h * s.out_w * s.out;
  const int64_t pad = s.kernel / 2;
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const int64_t out = i % s.out, ox = i / s.out % s.out_w, oy = i / s.out / s.out_w % s.out_h;
    const int64_t image = i / s.out / s.out_w / s.out_h;
    float sum = 0.0F;
    for (int64_t ky = 0; ky < s.kernel; ++ky) {
      for (int64_t kx = 0; kx < s.kernel; ++kx) {
        const int64_t iy = oy * s.stride + ky - pad, ix = ox * s.stride + kx - pad;
        if (iy < 0 || iy >= s.H || ix < 0 || ix >= s.W) continue;
        const T* pixel = x + ((image * s.H + iy) * s.W + ix) * s.in;
        for (int64_t in = 0; in < s.in; ++in)
          sum += ToFloat(pixel[in]) * ToFloat(weight[WeightAt(s, out, in, ky, kx)]);
      }
    }
    y[i] = FromFloat<T>(sum);
  }
}

template <typename T>
__global__ void InputGradKernel(T* dx, const T* dy, const T* weight, Conv s) {
  const int64_t n = s.N * s.H * s.W * s.in;
  const int64_t pad = s.kernel / 2;
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const int64_t in = i % s.in, ix = i / s.in % s.W, iy = i / s.in / s.W % s.H;
    const int64_t image = i / s.in / s.W / s.H;
    float sum = 0.0F;
    for (int64_t ky = 0; ky < s.kernel; ++ky) {
      for (int64_t kx = 0; kx < s.kernel; ++kx) {
        // Outputs that look at this pixel through (ky, kx).
        const int64_t y = iy + pad - ky, x = ix + pad - kx;
        if (y < 0 || x < 0 || y % s.stride != 0 || x % s.stride != 0) continue;
        if (y / s.stride >= s.out_h || x / s.stride >= s.out_w) continue;
        const int64_t at = (image * s.out_h + y / s.stride) * s.out_w + x / s.stride;
        for (int64_t out = 0; out < s.out; ++out)
          sum += ToFloat(dy[at * s.out + out]) * ToFloat(weight[WeightAt(s, out, in, ky, kx)]);
      }
    }
    dx[i] = FromFloat<T>(sum);
  }
}

// A block per weight.
template <typename T>
__global__ void WeightGradKernel(T* dweight, const T* dy, const T* x, Conv s) {
  const int64_t i = blockIdx.x;
  const int64_t kx = i % s.kernel, ky = i / s.kernel % s.kernel;
  const int64_t in = i / s.kernel / s.kernel % s.in, out = i / s.kernel / s.kernel / s.in;
  const int64_t pad = s.kernel / 2;
  float sum = 0.0F;
  for (int64_t at = threadIdx.x; at < s.N * s.out_h * s.out_w; at += kThreads) {
    const int64_t ox = at % s.out_w, oy = at / s.out_w % s.out_h, image = at / s.out_w / s.out_h;
    const int64_t iy = oy * s.stride + ky - pad, ix = ox * s.stride + kx - pad;
    if (iy < 0 || iy >= s.H || ix < 0 || ix >= s.W) continue;
    const float pixel = ToFloat(x[((image * s.H + iy) * s.W + ix) * s.in + in]);
    sum += ToFloat(dy[at * s.out + out]) * pixel;
  }
  sum = BlockReduce(sum, Plus());
  if (threadIdx.x == 0) dweight[i] = FromFloat<T>(ToFloat(dweight[i]) + sum);
}

template <typename T>
__global__ void MeanKernel(T* y, const T* x, int64_t n, int64_t P, int64_t C) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    float sum = 0.0F;
    for (int64_t p = 0; p < P; ++p)
      sum += ToFloat(x[(i / C * P + p) * C + i % C]);
    y[i] = FromFloat<T>(sum / static_cast<float>(P));
  }
}

template <typename T>
__global__ void MeanGradKernel(T* dx, const T* dy, int64_t n, int64_t P, int64_t C) {
  const float factor = 1.0F / static_cast<float>(P);
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    dx[i] = FromFloat<T>(ToFloat(dy[i / C / P * C + i % C]) * factor);
}

}  // namespace

template <>
void RunOp(const op::ConvForward& op, CudaWorkspace&) {
  const int64_t n = op.shape.NumOut();
  Visit(op.y.dtype, [&]<typename T>(T) {
    Launch(ForwardKernel<T>, {NumBlocks(n), kThreads}, op.y, op.x, op.weight, ConvOf(op.shape));
  });
}

template <>
void RunOp(const op::ConvInputGrad& op, CudaWorkspace&) {
  const int64_t n = op.shape.NumIn();
  Visit(op.dx.dtype, [&]<typename T>(T) {
    Launch(InputGradKernel<T>, {NumBlocks(n), kThreads}, op.dx, op.dy, op.weight, ConvOf(op.shape));
  });
}

template <>
void RunOp(const op::ConvWeightGrad& op, CudaWorkspace&) {
  const int64_t n = op.shape.NumWeights();
  Visit(op.dweight.dtype, [&]<typename T>(T) {
    Launch(WeightGradKernel<T>, {static_cast<unsigned>(n), kThreads}, op.dweight, op.dy, op.x,
           ConvOf(op.shape));
  });
}

template <>
void RunOp(const op::MeanPoolForward& op, CudaWorkspace&) {
  const int64_t n = op.N * op.C;
  Visit(op.y.dtype, [&]<typename T>(T) {
    Launch(MeanKernel<T>, {NumBlocks(n), kThreads}, op.y, op.x, n, op.P, op.C);
  });
}

template <>
void RunOp(const op::MeanPoolBackward& op, CudaWorkspace&) {
  const int64_t n = op.N * op.P * op.C;
  Visit(op.dx.dtype, [&]<typename T>(T) {
    Launch(MeanGradKernel<T>, {NumBlocks(n), kThreads}, op.dx, op.dy, n, op.P, op.C);
  });
}

}  // namespace dsat::engine::cuda
