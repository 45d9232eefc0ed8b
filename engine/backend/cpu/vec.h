// Arithmetic on single elements, written without branches so that the loops around it vectorize for
// whatever instruction set the compiler was given.
#ifndef DSAT_ENGINE_BACKEND_CPU_VEC_H_
#define DSAT_ENGINE_BACKEND_CPU_VEC_H_

#include <bit>
#include <cstdint>

#include "engine/core/half.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

// bf16 is stored as its bits.
using Bf16 = uint16_t;

inline float ToFloat(float x) {
  return x;
}
inline float ToFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

// `x` as T, rounded to nearest, ties to even; NaN stays NaN (quiet).
template <typename T>
T FromFloat(float x);
template <>
inline float FromFloat<float>(float x) {
  return x;
}
template <>
inline Bf16 FromFloat<Bf16>(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  // All in 32 bits: of a choice between 16-bit values compilers make three conversions.
  const bool is_nan = x != x;
  const uint32_t up = is_nan ? 0U : 0x7FFFU + ((bits >> 16) & 1U);
  const uint32_t quiet = is_nan ? 0x400000U : 0U;
  return static_cast<Bf16>(((bits + up) | quiet) >> 16);
}
template <>
inline F16 FromFloat<F16>(float x) {
  return ToF16(x);
}

// The same for the result of arithmetic on numbers of type T, and twice as fast for bf16 without
// instructions for it: a NaN has then come from T or from an invalid operation, and the lower half
// of its bits is 0, so that rounding leaves it as it is.
template <typename T>
T FromResult(float x) {
  return FromFloat<T>(x);
}
template <>
inline Bf16 FromResult<Bf16>(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<Bf16>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// exp(x), relative error below 2e-7; 0 below -87 (no denormals), inf above 88.72, NaN for NaN.
inline float Exp(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in
  // the low bits; ln 2 is split so that n * kLn2High is exact.
  constexpr float kRound = 12582912.0F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  const float clamped = x > 89.0F ? 89.0F : (x < -87.0F ? -87.0F : x);
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Taylor's polynomial of degree 7; its remainder is below 1e-8 here.
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // 2^(n-1) and a factor 2: n may be 128. Unsigned arithmetic wraps as two's complement should.
  const uint32_t integer = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  const float scale = std::bit_cast<float>((integer + 126U) << 23);
  const float value = p * scale * 2.0F;
  return x < -87.0F ? 0.0F : value;
}

// 1 / (1 + exp(-x)).
inline float Sigmoid(float x) {
  return 1.0F / (1.0F + Exp(-x));
}

// Calls `fn` with a value of the C++ type that stores `dtype`.
template <typename Fn>
decltype(auto) VisitDType(DType dtype, const Fn& fn) {
  if (dtype == DType::kF32) return fn(float{});
  if (dtype == DType::kF16) return fn(F16{});
  return fn(Bf16{});
}

// The elements of a tensor, whose dtype must be T's.
template <typename T>
T* Data(const Tensor& t);
template <>
inline float* Data<float>(const Tensor& t) {
  return t.f32();
}
template <>
inline Bf16* Data<Bf16>(const Tensor& t) {
  return t.bf16();
}
template <>
inline F16* Data<F16>(const Tensor& t) {
  return t.f16();
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_VEC_H_
