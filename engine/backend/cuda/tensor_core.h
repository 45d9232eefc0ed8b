// The PTX instructions by which a warp uses tensor cores from sm_80 on: products of 16 x 8 tiles
// (mma), loads of their operands from shared memory (ldmatrix), and asynchronous copies to shared
// memory (cp.async). All lanes of a warp call them, unless a comment says otherwise. A program that
// is compiled without nvcc must define what is only declared here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace dsat::engine::cuda {

// The types that the kernels multiply on tensor cores.
template <typename Elem>
inline constexpr bool kIsTensorType =
    std::is_same_v<Elem, __nv_bfloat16> || std::is_same_v<Elem, __half>;

// A lane's part of a product's left operand (16 x 16): with g = lane / 4 and i = 2 (lane % 4),
// pairs (row, first column) = (g, i), (g + 8, i), (g, i + 8), (g + 8, i + 8); the first of a pair
// is in the low half. The right one (16 x 8) is two words: pairs (first row, column) = (i, g), (i +
// 8, g). Their product (16 x 8) is four numbers: (g, i), (g, i + 1), (g + 8, i), (g + 8, i + 1).
struct LeftOperand {
  uint32_t words[4];
};

// A number of bytes, as instructions on shared memory take it.
#ifdef __CUDACC__
using SharedAddress = uint32_t;
#else
using SharedAddress = uintptr_t;
#endif

#ifdef __CUDACC__

// sums += left * right, in f32.
template <typename Elem>
__device__ inline void MultiplyAdd(float (&sums)[4], const LeftOperand& left, uint32_t right0,
                                   uint32_t right1) {
  static_assert(kIsTensorType<Elem>);
  if constexpr (std::is_same_v<Elem, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left.words[0]), "r"(left.words[1]), "r"(left.words[2]), "r"(left.words[3]),
          "r"(right0), "r"(right1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left.words[0]), "r"(left.words[1]), "r"(left.words[2]), "r"(left.words[3]),
          "r"(right0), "r"(right1));
  }
}

// Two numbers rounded to Elem, `low` in the low half. Any lane.
template <typename Elem>
__device__ inline uint32_t Pack(float low, float high) {
  static_assert(kIsTensorType<Elem>);
  uint32_t word;
  if constexpr (std::is_same_v<Elem, __nv_bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

__device__ inline SharedAddress AddressOf(const void* shared) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
}

// Four 8 x 8 matrices of 16-bit numbers. Lane 8 j + r gives the address of row r of matrix j (16
// bytes); word j of lane l is row l / 4 of matrix j, columns 2 (l % 4) and the next.
__device__ inline void LoadMatrices(uint32_t (&words)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
// Transposed: word j of lane l is column l / 4 of matrix j, rows 2 (l % 4) and the next.
__device__ inline void LoadTransposed(uint32_t (&words)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

// The calling lane's copy of kBytes (4, or 16 past the first-level cache) from global memory
// begins; zeros if not `valid`, when nothing is read. Both addresses are multiples of kBytes;
// `global` may lie anywhere if not `valid`.
template <int kBytes>
__device__ inline void BeginCopy(SharedAddress shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 16);
  const int read = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(global)), "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(global)), "r"(read)
                 : "memory");
  }
}
// Waits until the copies that the calling lane has begun are done; others see them after a barrier.
__device__ inline void FinishCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

#else

SharedAddress AddressOf(const void* shared);
template <typename Elem>
void MultiplyAdd(float (&sums)[4], const LeftOperand& left, uint32_t right0, uint32_t right1);
template <typename Elem>
uint32_t Pack(float low, float high);
void LoadMatrices(uint32_t (&words)[4], SharedAddress row);
void LoadTransposed(uint32_t (&words)[4], SharedAddress row);
template <int kBytes>
void BeginCopy(SharedAddress shared, const void* global, bool valid);
void FinishCopies();

#endif

}  // namespace dsat::engine::cuda
