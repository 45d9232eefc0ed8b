// The arithmetic of the collectives, in tiles that stay in the first-level cache between addends.
#include "engine/comm/sum_rows.h"

#include <algorithm>
#include <bit>

#include "engine/half.h"

namespace dsat::engine {
namespace {

constexpr int64_t kTileElems = 2048;  // 8 KiB of f32.

float ToFloat(float x) {
  return x;
}
float ToFloat(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

void Store(float* out, float x) {
  *out = x;
}
void Store(F16* out, float x) {
  *out = ToF16(x);
}
void Store(uint16_t* out, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  // Rounding could carry a NaN's payload over into infinity: a NaN is cut and made quiet instead.
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  *out = static_cast<uint16_t>((is_nan ? bits | 0x400000U : rounded) >> 16);
}

// `out` may be one of the rows, element by element: no iteration reads what another wrote (ivdep).
template <typename T>
void SumTwoRows(T* out, const T* first, const T* second, int64_t num_elems) {
#pragma GCC ivdep
  for (int64_t i = 0; i < num_elems; ++i)
    Store(out + i, ToFloat(first[i]) + ToFloat(second[i]));
}

template <typename T>
void SumManyRows(T* out, std::span<const void* const> rows, int64_t num_elems) {
  alignas(64) float sum[kTileElems];
  for (int64_t begin = 0; begin < num_elems; begin += kTileElems) {
    const int64_t count = std::min(kTileElems, num_elems - begin);
    std::fill(sum, sum + count, -0.0F);  // The one number that changes no sum, not even -0.
    for (const void* row : rows) {
      const T* addend = static_cast<const T*>(row) + begin;
      for (int64_t i = 0; i < count; ++i)
        sum[i] += ToFloat(addend[i]);
    }
    for (int64_t i = 0; i < count; ++i)
      Store(out + begin + i, sum[i]);
  }
}

template <typename T>
void SumRowsOf(T* out, std::span<const void* const> rows, int64_t num_elems) {
  if (rows.size() == 2) {  // Most machines' case, and half the memory operations.
    SumTwoRows(out, static_cast<const T*>(rows[0]), static_cast<const T*>(rows[1]), num_elems);
  } else {
    SumManyRows(out, rows, num_elems);
  }
}

}  // namespace

void SumRows(void* out, std::span<const void* const> rows, DType dtype, int64_t num_elems) {
  DSAT_CHECK(!rows.empty());
  if (dtype == DType::kF32) {
    SumRowsOf(static_cast<float*>(out), rows, num_elems);
  } else if (dtype == DType::kF16) {
    SumRowsOf(static_cast<F16*>(out), rows, num_elems);
  } else {
    SumRowsOf(static_cast<uint16_t*>(out), rows, num_elems);
  }
}

}  // namespace dsat::engine
