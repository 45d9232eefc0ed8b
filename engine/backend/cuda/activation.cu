// Activation functions, element by element.
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

__device__ float Sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
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

template <typename T, typename Fn>
__global__ void MapKernel(T* y, const T* x, int64_t n, Fn fn) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    y[i] = FromFloat<T>(fn(ToFloat(x[i])));
}

template <typename T, typename Fn>
__global__ void MapGradKernel(T* dx, const T* dy, const T* x, int64_t n, Fn fn) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    dx[i] = FromFloat<T>(fn(ToFloat(dy[i]), ToFloat(x[i])));
}

template <typename T>
__global__ void SwigluKernel(T* y, const T* x, int64_t n, int64_t F) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const T* row = x + i / F * 2 * F;
    const float a = ToFloat(row[i % F]);
    y[i] = FromFloat<T>(a * Sigmoid(a) * ToFloat(row[F + i % F]));
  }
}

template <typename T>
__global__ void SwigluGradKernel(T* dx, const T* dy, const T* x, int64_t n, int64_t F) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const int64_t at = i / F * 2 * F + i % F;
    const float a = ToFloat(x[at]);
    const float b = ToFloat(x[at + F]);
    const float g = ToFloat(dy[i]);
    const float s = Sigmoid(a);
    dx[at] = FromFloat<T>(g * b * s * (1.0F + a * (1.0F - s)));
    dx[at + F] = FromFloat<T>(g * a * s);
  }
}

template <typename Fn>
void Map(const View& y, const View& x, const Fn& fn) {
  if (y.n == 0) return;
  Visit(y.type, [&](auto type) {
    using T = decltype(type);
    Launch(MapKernel<T, Fn>, {NumBlocks(y.n), kThreads}, Data<T>(y), Data<T>(x), y.n, fn);
  });
}

template <typename Fn>
void MapGrad(const View& dx, const View& dy, const View& x, const Fn& fn) {
  if (dx.n == 0) return;
  Visit(dx.type, [&](auto type) {
    using T = decltype(type);
    Launch(MapGradKernel<T, Fn>, {NumBlocks(dx.n), kThreads}, Data<T>(dx), Data<T>(dy), Data<T>(x),
           dx.n, fn);
  });
}

}  // namespace

void GeluForward(const View& y, const View& x) {
  Map(y, x, Gelu());
}

void GeluBackward(const View& dx, const View& dy, const View& x) {
  MapGrad(dx, dy, x, GeluGrad());
}

void ReluForward(const View& y, const View& x) {
  Map(y, x, Relu());
}

void ReluBackward(const View& dx, const View& dy, const View& x) {
  MapGrad(dx, dy, x, ReluGrad());
}

void SwigluForward(const View& y, const View& x, int64_t N, int64_t F) {
  if (N * F == 0) return;
  Visit(y.type, [&](auto type) {
    using T = decltype(type);
    Launch(SwigluKernel<T>, {NumBlocks(N * F), kThreads}, Data<T>(y), Data<T>(x), N * F, F);
  });
}

void SwigluBackward(const View& dx, const View& dy, const View& x, int64_t N, int64_t F) {
  if (N * F == 0) return;
  Visit(dx.type, [&](auto type) {
    using T = decltype(type);
    Launch(SwigluGradKernel<T>, {NumBlocks(N * F), kThreads}, Data<T>(dx), Data<T>(dy), Data<T>(x),
           N * F, F);
  });
}

}  // namespace dsat::engine::cuda
