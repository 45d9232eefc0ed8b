// Arithmetic on single elements, written without branches so that the loops around it vectorize for
// whatever instruction set the compiler was given.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/core/elements.h"

namespace dsat::engine {

// FromFloat for the result of arithmetic on numbers of type T, and twice as fast for bf16 without
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

}  // namespace dsat::engine
