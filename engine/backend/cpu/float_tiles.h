// 16-bit numbers as f32, in pieces that stay in the cache: on processors without instructions for
// them, a conversion costs as much as several sums, and should happen once.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/backend/cpu/vec.h"

namespace dsat::engine {

// to[i] = from[i] as f32.
template <typename T>
void Widen(float* to, const T* from, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    to[i] = ToFloat(from[i]);
}

// The elements of `t` as f32: themselves if they are, else converted to `space` (num_elems).
template <typename T>
const float* AsFloats(const Tensor& t, float* space) {
  if constexpr (std::is_same_v<T, float>) return t.f32();
  Widen(space, Data<T>(t), t.num_elems);
  return space;
}

// An array as f32: what Keep has converted is kept for later loops.
template <typename T>
struct KeptAsFloats {
  KeptAsFloats(const T* from, float* space) : source(from), kept(space) {}
  float Keep(int64_t i) const { return kept[i] = ToFloat(source[i]); }
  const T* source;
  float* kept;
};
template <>
struct KeptAsFloats<float> {
  KeptAsFloats(const float* from, float*) : kept(from) {}
  float Keep(int64_t i) const { return kept[i]; }
  const float* kept;
};

// Some of the elements of an array as f32.
template <typename T, int64_t kSize>
struct FloatTile {
  FloatTile(const T* from, int64_t n) { Widen(elems, from, n); }
  float elems[kSize];
};

// y[i] = fn(x[i]...) for arguments in f32; y may be one of the x. 16-bit numbers are converted in
// tiles: in one loop with a longer `fn` they would take twice the registers.
template <typename T, typename Fn, typename... X>
void MapFloats(int64_t n, T* y, const Fn& fn, const X*... x) {
  if constexpr (std::is_same_v<T, float>) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      y[i] = fn(x[i]...);
  } else {
    constexpr int64_t kTile = 512;
    for (int64_t begin = 0; begin < n; begin += kTile) {
      const int64_t count = n - begin < kTile ? n - begin : kTile;
      const auto map = [&](const FloatTile<X, kTile>&... tile) {
        float to[kTile];
#pragma omp simd
        for (int64_t i = 0; i < count; ++i)
          to[i] = fn(tile.elems[i]...);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i)
          y[begin + i] = FromResult<T>(to[i]);
      };
      map({x + begin, count}...);
    }
  }
}

}  // namespace dsat::engine
