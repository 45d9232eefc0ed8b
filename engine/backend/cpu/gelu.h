// GELU and its derivative, for kernels and for products that end in it.
#ifndef DSAT_ENGINE_BACKEND_CPU_GELU_H_
#define DSAT_ENGINE_BACKEND_CPU_GELU_H_

#include "engine/backend/cpu/vec.h"

namespace dsat::engine {

// 0.5 (1 + tanh(u)) = sigmoid(2 u), which keeps its relative accuracy where tanh is near -1.
// Here 2 u = kGeluSlope (x + kGeluCubic x^3).
inline constexpr float kGeluSlope = 1.5957691216F;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715F;

inline float Gelu(float x) {
  return x * Sigmoid(kGeluSlope * (x + kGeluCubic * x * x * x));
}

inline float GeluDerivative(float x) {
  const float s = Sigmoid(kGeluSlope * (x + kGeluCubic * x * x * x));
  const float inner = kGeluSlope * (1.0F + 3.0F * kGeluCubic * x * x);
  return s + x * s * (1.0F - s) * inner;
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_GELU_H_
