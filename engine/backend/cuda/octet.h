// Reads and writes eight numbers at a time, 16 or 32 bytes, in one or two accesses, so that a
// kernel that computes little runs at the speed of memory.
#pragma once

#include <cstring>
#include <type_traits>

#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {

constexpr int kOctet = 8;

struct Octet {
  float x[kOctet];

  __device__ float& operator[](int j) { return x[j]; }
  __device__ float operator[](int j) const { return x[j]; }
};

// A thread handles the octets at FirstOctet(), FirstOctet() + OctetStride(), ... below n.
inline int NumOctetBlocks(int64_t n) {
  return NumBlocks((n + kOctet - 1) / kOctet);
}
__device__ inline int64_t FirstOctet() {
  return kOctet * FirstIndex();
}
__device__ inline int64_t OctetStride() {
  return kOctet * IndexStride();
}

template <typename T>
__host__ __device__ bool TakesWords(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0;
}

// An octet as it is in memory, which takes half the registers in 16 bit.
template <typename T>
struct PackedOctet {
  static constexpr int kWords = kOctet * sizeof(T) / sizeof(uint4);
  uint4 words[kWords];
};

// data[0, 8). REQUIRES: TakesWords(data).
template <typename T>
__device__ PackedOctet<T> LoadPackedWords(const T* data) {
  PackedOctet<T> octet;
#pragma unroll
  for (int k = 0; k < PackedOctet<T>::kWords; ++k)
    octet.words[k] = reinterpret_cast<const uint4*>(data)[k];
  return octet;
}

template <typename T>
__device__ Octet Unpack(const PackedOctet<T>& packed) {
  T values[kOctet];
  memcpy(values, packed.words, sizeof(values));
  Octet octet;
#pragma unroll
  for (int j = 0; j < kOctet; ++j)
    octet[j] = ToFloat(values[j]);
  return octet;
}

// Whether rows of C numbers consist of octets that take words. Kernels for such rows leave out the
// code for the end of a row, which is repeated at each access, so that a kernel with many of them
// does not fit in the instruction cache.
template <typename... T>
bool AreWhole(int64_t C, const T*... rows) {
  return C % kOctet == 0 && (TakesWords(rows) && ...);
}

// Returns data[i, i + 8), with 0 from n on. Loads them one by one if the address is not aligned.
// kWhole: i is a multiple of 8, and AreWhole(n, data).
template <bool kWhole = false, typename T>
__device__ PackedOctet<T> LoadPacked(const T* data, int64_t i, int64_t n) {
  if (kWhole ? i < n : TakesWords(data + i) && i + kOctet <= n) return LoadPackedWords(data + i);
  PackedOctet<T> octet = {};
  if constexpr (!kWhole) {
    T values[kOctet];
#pragma unroll
    for (int j = 0; j < kOctet; ++j)
      values[j] = i + j < n ? data[i + j] : FromFloat<T>(0.0F);
    memcpy(octet.words, values, sizeof(values));
  }
  return octet;
}

// As LoadPackedWords and LoadPacked.
template <typename T>
__device__ Octet LoadWords(const T* data) {
  return Unpack(LoadPackedWords(data));
}
template <bool kWhole = false, typename T>
__device__ Octet LoadOctet(const T* data, int64_t i, int64_t n) {
  return Unpack(LoadPacked<kWhole>(data, i, n));
}

// Stores an octet at data[i, i + 8), but nothing from n on. kWhole as above.
template <bool kWhole = false, typename T>
__device__ void StoreOctet(T* data, int64_t i, int64_t n, const Octet& octet) {
  if (kWhole ? i < n : TakesWords(data + i) && i + kOctet <= n) {
    T values[kOctet];
#pragma unroll
    for (int j = 0; j < kOctet; ++j)
      values[j] = FromFloat<T>(octet[j]);
    constexpr int kWords = kOctet * sizeof(T) / sizeof(uint4);
    uint4 words[kWords];
    memcpy(words, values, sizeof(values));
#pragma unroll
    for (int k = 0; k < kWords; ++k)
      reinterpret_cast<uint4*>(data + i)[k] = words[k];
  } else if constexpr (!kWhole) {
#pragma unroll
    for (int j = 0; j < kOctet; ++j)
      if (i + j < n) data[i + j] = FromFloat<T>(octet[j]);
  }
}

// out[i] = fn(in[i]...), in f32; `out` may be one of `in`.
template <typename Out, typename Fn, typename... In>
__global__ void MapKernel(Out* out, int64_t n, Fn fn, const In*... in) {
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    Octet result;
    const auto map = [&](const auto&... octets) {
      for (int j = 0; j < kOctet; ++j)
        result[j] = fn(octets[j]...);
    };
    map(LoadOctet(in, i, n)...);
    StoreOctet(out, i, n, result);
  }
}

// Launches MapKernel. `in` are tensors of the type of `out`.
template <typename Fn, typename... In>
void Map(const Tensor& out, const Fn& fn, const In&... in) {
  Visit(out.dtype, [&]<typename T>(T) {
    Launch(MapKernel<T, Fn, std::conditional_t<true, T, In>...>,
           {NumOctetBlocks(out.num_elems), kThreads}, out, out.num_elems, fn, in...);
  });
}

}  // namespace dsat::engine::cuda
