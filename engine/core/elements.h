// The C++ types that store the elements of tensors. Conversions are written without branches so
// that loops of them vectorize.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/error.h"
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

// Calls `fn` with a value of the C++ type that stores `dtype`.
template <typename Fn>
decltype(auto) VisitDType(DType dtype, const Fn& fn) {
  if (dtype == DType::kF32) return fn(float{});
  if (dtype == DType::kF16) return fn(F16{});
  return fn(Bf16{});
}

// The elements of a tensor, whose dtype must be T's.
template <typename T>
T* Data(const Tensor& t) {
  if constexpr (std::is_same_v<T, float>) {
    return t.f32();
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return t.bf16();
  } else {
    static_assert(std::is_same_v<T, F16>);
    return t.f16();
  }
}

// dst = src, rounded to nearest, ties to even. Numbers that are too large become infinite; NaN
// stays NaN. REQUIRES: equal numbers of elements, and no overlap.
inline void ConvertElems(const Tensor& dst, const Tensor& src) {
  DSAT_CHECK(dst.num_elems == src.num_elems);
  if (dst.dtype == src.dtype) {
    if (src.num_elems > 0) std::memcpy(dst.data, src.data, static_cast<size_t>(src.bytes()));
    return;
  }
  VisitDType(dst.dtype, [&]<typename To>(To) {
    VisitDType(src.dtype, [&]<typename From>(From) {
      To* to = Data<To>(dst);
      const From* from = Data<From>(src);
      for (int64_t i = 0; i < src.num_elems; ++i)
        to[i] = FromFloat<To>(ToFloat(from[i]));
    });
  });
}

}  // namespace dsat::engine
