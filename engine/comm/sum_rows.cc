// The arithmetic of the collectives, in tiles that stay in the first-level cache between addends.
#include "engine/comm/sum_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dsat::engine {
namespace {

constexpr int64_t kTileElems = 2048;  // 8 KiB of f32.

// The element types, so that bf16 and f16 are not one; of the compiler's own where it has one.
using F32 = float;
enum class Bf16 : uint16_t {};
using F16 = _Float16;

float ToFloat(F32 x) {
  return x;
}
float ToFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}
float ToFloat(F16 x) {
  return static_cast<float>(x);
}

void Store(F32* out, float x) {
  *out = x;
}
void Store(Bf16* out, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  // Rounding could carry a NaN's payload over into infinity: a NaN is cut and made quiet instead.
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  *out = static_cast<Bf16>((is_nan ? bits | 0x400000U : rounded) >> 16);
}
void Store(F16* out, float x) {
  *out = static_cast<F16>(x);
}

// `sum` may be one of the rows, element by element: no iteration reads what another wrote (ivdep).
template <typename T>
void SumTwoRows(T* sum, const T* first, const T* second, int64_t num_elems) {
#pragma GCC ivdep
  for (int64_t i = 0; i < num_elems; ++i)
    Store(sum + i, ToFloat(first[i]) + ToFloat(second[i]));
}

template <typename T>
void SumManyRows(T* sum, std::span<const void* const> rows, int64_t begin, int64_t num_elems) {
  alignas(64) float total[kTileElems];
  std::fill(total, total + num_elems, -0.0F);  // The one number that changes no sum, not even -0.
  for (const void* row : rows) {
    const T* addend = static_cast<const T*>(row) + begin;
    for (int64_t i = 0; i < num_elems; ++i)
      total[i] += ToFloat(addend[i]);
  }
  for (int64_t i = 0; i < num_elems; ++i)
    Store(sum + i, total[i]);
}

template <typename T>
void SumRowsOf(std::span<void* const> sums, std::span<const void* const> rows, int64_t num_elems) {
  for (int64_t begin = 0; begin < num_elems; begin += kTileElems) {
    const int64_t count = std::min(kTileElems, num_elems - begin);
    T* sum = static_cast<T*>(sums[0]) + begin;
    if (rows.size() == 2) {  // Most machines' case, and half the memory operations.
      SumTwoRows(sum, static_cast<const T*>(rows[0]) + begin,
                 static_cast<const T*>(rows[1]) + begin, count);
    } else {
      SumManyRows(sum, rows, begin, count);
    }
    for (void* other : sums.subspan(1)) {
      std::memcpy(static_cast<T*>(other) + begin, sum, static_cast<size_t>(count) * sizeof(T));
    }
  }
}

}  // namespace

void SumRows(std::span<void* const> sums, std::span<const void* const> rows, DType dtype,
             int64_t num_elems) {
  DSAT_CHECK(!rows.empty() && !sums.empty());
  switch (dtype) {
    case DType::kF32:
      return SumRowsOf<F32>(sums, rows, num_elems);
    case DType::kBF16:
      return SumRowsOf<Bf16>(sums, rows, num_elems);
    case DType::kF16:
      return SumRowsOf<F16>(sums, rows, num_elems);
  }
}

}  // namespace dsat::engine
