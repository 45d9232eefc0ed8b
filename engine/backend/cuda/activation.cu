// Activation functions, element by element.
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

// Within a few units of the last place, by instructions that leave a kernel bound by memory.
__device__ float Sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + Exp2(-kLog2E * x));
}

// 0.5 (1 + tanh(u)) = sigmoid(2 u); here 2 u = kSlope (x + kCubic x^3).
constexpr float kSlope = 1.5957691216F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

struct Gelu {
  __device__ float operator()(float x) const {
    return x * Sigmoid(kSlope * (x + kCubic * x * x * x));
  }
};
struct GeluGrad {
  __device__ float operator()(float dy, float x) const {
    const float s = Sigmoid(kSlope * (x + kCubic * x * x * x));
    const float inner = kSlope * (1.0F + 3.0F * kCubic * x * x);
    return dy * (s + x * s * (1.0F - s) * inner);
  }
};
struct Relu {
  // NaN passes: it should be seen in the loss.
  __device__ float operator()(float x) const { return x < 0.0F ? 0.0F : x; }
};
struct ReluGrad {
  __device__ float operator()(float dy, float x) const { return x > 0.0F ? dy : 0.0F; }
};

// Octets of a row of F numbers, the last one perhaps in part; octet i is in row i / OctetsOf(F).
__host__ __device__ int64_t OctetsOf(int64_t F) {
  return (F + kOctet - 1) / kOctet;
}

template <typename T>
__global__ void SwigluKernel(T* y, const T* x, int64_t N, int64_t F) {
  const int64_t octets = OctetsOf(F);
  for (int64_t i = FirstIndex(); i < N * octets; i += IndexStride()) {
    const int64_t row = i / octets, c = i % octets * kOctet;
    Octet a = LoadOctet(x + row * 2 * F, c, F);
    const Octet b = LoadOctet(x + row * 2 * F + F, c, F);
    for (int j = 0; j < kOctet; ++j)
      a[j] = a[j] * Sigmoid(a[j]) * b[j];
    StoreOctet(y + row * F, c, F, a);
  }
}

template <typename T>
__global__ void SwigluGradKernel(T* dx, const T* dy, const T* x, int64_t N, int64_t F) {
  const int64_t octets = OctetsOf(F);
  for (int64_t i = FirstIndex(); i < N * octets; i += IndexStride()) {
    const int64_t row = i / octets, c = i % octets * kOctet;
    Octet a = LoadOctet(x + row * 2 * F, c, F);
    Octet b = LoadOctet(x + row * 2 * F + F, c, F);
    const Octet grad = LoadOctet(dy + row * F, c, F);
    for (int j = 0; j < kOctet; ++j) {
      const float s = Sigmoid(a[j]), g = grad[j];
      const float da = g * b[j] * s * (1.0F + a[j] * (1.0F - s));
      b[j] = g * a[j] * s;
      a[j] = da;
    }
    StoreOctet(dx + row * 2 * F, c, F, a);
    StoreOctet(dx + row * 2 * F + F, c, F, b);
  }
}

}  // namespace

template <>
void RunOp(const op::GeluForward& op, CudaWorkspace&) {
  Map(op.y, Gelu(), op.x);
}

template <>
void RunOp(const op::GeluBackward& op, CudaWorkspace&) {
  Map(op.dx, GeluGrad(), op.dy, op.x);
}

template <>
void RunOp(const op::ReluForward& op, CudaWorkspace&) {
  Map(op.y, Relu(), op.x);
}

template <>
void RunOp(const op::ReluBackward& op, CudaWorkspace&) {
  Map(op.dx, ReluGrad(), op.dy, op.x);
}

template <>
void RunOp(const op::SwigluForward& op, CudaWorkspace&) {
  Visit(op.y.dtype, [&]<typename T>(T) {
    Launch(SwigluKernel<T>, {NumBlocks(op.N * OctetsOf(op.F)), kThreads}, op.y, op.x, op.N, op.F);
  });
}

template <>
void RunOp(const op::SwigluBackward& op, CudaWorkspace&) {
  Visit(op.dx.dtype, [&]<typename T>(T) {
    Launch(SwigluGradKernel<T>, {NumBlocks(op.N * OctetsOf(op.F)), kThreads}, op.dx, op.dy, op.x,
           op.N, op.F);
  });
}

}  // namespace dsat::engine::cuda
