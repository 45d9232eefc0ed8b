// The sum over ranks, computed in tiles that stay in the first-level cache.
#include "engine/comm/sum_rows.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/core/elements.h"

namespace dsat::engine {
namespace {

constexpr int64_t kTileElems = 2048;  // 8 KiB of f32.

// Sums elements [begin, begin + count) of `num_rows` rows without an intermediate result in memory.
// `sum` may be one of the rows, because no iteration reads what another has written (ivdep).
template <size_t num_rows, typename T>
void SumFewRows(T* sum, std::span<const void* const> rows, int64_t begin, int64_t count) {
  std::array<const T*, num_rows> addends;
  for (size_t row = 0; row < num_rows; ++row)
    addends[row] = static_cast<const T*>(rows[row]) + begin;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    float total = ToFloat(addends[0][i]);
    for (size_t row = 1; row < num_rows; ++row)
      total += ToFloat(addends[row][i]);
    sum[i] = FromFloat<T>(total);
  }
}

template <typename T>
void SumManyRows(T* sum, std::span<const void* const> rows, int64_t begin, int64_t count) {
  alignas(64) float total[kTileElems];
  std::fill(total, total + count, -0.0F);  // Adding -0 changes no sum, not even -0.
  for (const void* row : rows) {
    const T* addend = static_cast<const T*>(row) + begin;
    for (int64_t i = 0; i < count; ++i)
      total[i] += ToFloat(addend[i]);
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i)
    sum[i] = FromFloat<T>(total[i]);
}

// Sums as the functions above, but only types that the instruction set converts. Returns the number
// of elements summed.
template <typename T>
int64_t SumVectors(T*, std::span<const void* const>, int64_t, int64_t) {
  return 0;
}
#ifdef __F16C__
__m256 LoadVector(const void* row, int64_t i) {
  return _mm256_cvtph_ps(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const F16*>(row) + i)));
}
template <>
int64_t SumVectors(F16* sum, std::span<const void* const> rows, int64_t begin, int64_t count) {
  constexpr int64_t kLanes = 8;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __m256 total = LoadVector(rows[0], begin + i);
    for (const void* row : rows.subspan(1))
      total = _mm256_add_ps(total, LoadVector(row, begin + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sum + i),
                     _mm256_cvtps_ph(total, _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}
#endif

template <typename T>
void SumRowsOf(std::span<void* const> sums, std::span<const void* const> rows, int64_t num_elems) {
  static constexpr std::array kSumFewRows{SumFewRows<1, T>, SumFewRows<2, T>, SumFewRows<3, T>,
                                          SumFewRows<4, T>, SumFewRows<5, T>, SumFewRows<6, T>,
                                          SumFewRows<7, T>, SumFewRows<8, T>};
  const auto sum_tile =
      rows.size() <= kSumFewRows.size() ? kSumFewRows[rows.size() - 1] : SumManyRows<T>;
  for (int64_t begin = 0; begin < num_elems; begin += kTileElems) {
    const int64_t count = std::min(kTileElems, num_elems - begin);
    T* sum = static_cast<T*>(sums[0]) + begin;
    const int64_t done = SumVectors(sum, rows, begin, count);
    sum_tile(sum + done, rows, begin + done, count - done);
    for (void* other : sums.subspan(1)) {
      std::memcpy(static_cast<T*>(other) + begin, sum, static_cast<size_t>(count) * sizeof(T));
    }
  }
}

}  // namespace

void SumRows(std::span<void* const> sums, std::span<const void* const> rows, DType dtype,
             int64_t num_elems) {
  DSAT_CHECK(!rows.empty() && !sums.empty());
  VisitDType(dtype, [&]<typename T>(T) { SumRowsOf<T>(sums, rows, num_elems); });
}

}  // namespace dsat::engine
