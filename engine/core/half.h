// IEEE half precision: 5 bits of exponent, 10 of mantissa, largest finite number 65504, smallest
// 2^-24. Written without branches so that loops of conversions vectorize on any processor.
#pragma once

#include <bit>
#include <cstdint>

namespace dsat::engine {

// A half-precision number as its bits; a type of its own, since bf16 is stored as uint16_t.
struct F16 {
  uint16_t bits = 0;
  bool operator==(const F16&) const = default;
};

// The conversion is exact.
inline float ToFloat(F16 x) {
  constexpr uint32_t kRebias = 127U - 15U;  // From the exponent's bias of f16 to that of f32.
  const uint32_t magnitude = (x.bits & 0x7FFFU) << 13;
  const uint32_t sign = (x.bits & 0x8000U) << 16;
  const uint32_t rebias = magnitude >= (31U << 23) ? 2 * kRebias : kRebias;  // Infinity, NaN.
  const uint32_t normal = magnitude + (rebias << 23);
  // Below 2^-14 the leading bit is not implicit: it is added and then subtracted.
  const float subnormal = std::bit_cast<float>(magnitude + ((kRebias + 1) << 23)) - 0x1p-14F;
  const uint32_t bits = magnitude < (1U << 23) ? std::bit_cast<uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | sign);
}

// Rounds to nearest, ties to even. 65520 and more become infinity; NaN stays NaN (quiet).
inline F16 ToF16(float x) {
  constexpr uint32_t kRebias = (127U - 15U) << 23;
  constexpr uint32_t kSmallestNormal = 113U << 23;  // 2^-14
  constexpr uint32_t kTooLarge = 143U << 23;        // 2^16; what is just below rounds up by itself.
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFFFFFFU;
  const uint32_t sign = (std::bit_cast<uint32_t>(x) >> 16) & 0x8000U;
  const uint32_t tie_to_even = (magnitude >> 13) & 1U;
  const uint32_t normal = (magnitude - kRebias + 0xFFFU + tie_to_even) >> 13;
  // The last bit of a sum just above 0.5 is worth 2^-24, that of the smallest f16.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - (126U << 23);
  const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  const uint32_t large = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
  return {static_cast<uint16_t>((magnitude >= kTooLarge ? large : finite) | sign)};
}

}  // namespace dsat::engine
