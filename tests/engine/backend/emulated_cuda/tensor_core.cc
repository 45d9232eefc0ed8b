// A warp's tensor-core instructions by plain loops, from the fragment layouts of the PTX ISA
// (sections on mma.m16n8k16, ldmatrix and cp.async).
//
// Copies to shared memory happen at the latest moment that is allowed, when their thread waits for
// them, so that whoever does not wait computes with what was there before.
#include "engine/backend/cuda/tensor_core.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

constexpr int kMaxThreads = 1024;  // The most threads of a block.

struct Copy {
  void* to;
  const void* from;  // nullptr: zeros.
  size_t bytes;
};

std::vector<Copy>& CopiesOfThread() {
  static auto* const copies = new std::vector<Copy>[kMaxThreads];
  return copies[(threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x];
}

// The half of `word` that holds the first (0) or the second (1) number.
template <typename Elem>
float Half(uint32_t word, int which) {
  return ToFloat(std::bit_cast<Elem>(static_cast<uint16_t>(word >> (16 * which))));
}

struct Operands {
  LeftOperand left;
  uint32_t right[2];
};

// Element (row, k) of the left operand: lane 4 (row % 8) + k % 8 / 2 has it, in word
// 2 (k / 8) + row / 8.
template <typename Elem>
float Left(const emulated_cuda::Lanes<Operands>& lanes, int row, int k) {
  const Operands operands = lanes[4 * (row % 8) + k % 8 / 2];
  return Half<Elem>(operands.left.words[k / 8 * 2 + row / 8], k % 2);
}
// Element (k, column) of the right one: lane 4 column + k % 8 / 2, word k / 8.
template <typename Elem>
float Right(const emulated_cuda::Lanes<Operands>& lanes, int k, int column) {
  const Operands operands = lanes[4 * column + k % 8 / 2];
  return Half<Elem>(operands.right[k / 8], k % 2);
}

// A row of an 8 x 8 matrix.
struct MatrixRow {
  uint16_t elements[8];
};

// Lane 8 j + row brings row `row` of matrix j.
void Load(uint32_t (&words)[4], SharedAddress address, bool transposed, const Site& site) {
  DSAT_CHECK(address % sizeof(MatrixRow) == 0, "ldmatrix of a row that is not aligned");
  MatrixRow mine;
  std::memcpy(&mine, reinterpret_cast<const void*>(address), sizeof(mine));
  const auto rows = emulated_cuda::Exchange(kAllLanes, mine, site);
  const int major = emulated_cuda::Lane() / 4, minor = emulated_cuda::Lane() % 4 * 2;
  for (int j = 0; j < 4; ++j) {
    const auto element = [&](int i) -> uint32_t {
      return transposed ? rows[8 * j + i].elements[major] : rows[8 * j + major].elements[i];
    };
    words[j] = element(minor) | element(minor + 1) << 16;
  }
}

}  // namespace

SharedAddress AddressOf(const void* shared) {
  return reinterpret_cast<SharedAddress>(shared);
}

template <typename Elem>
void MultiplyAdd(float (&sums)[4], const LeftOperand& left, uint32_t right0, uint32_t right1) {
  const auto lanes =
      emulated_cuda::Exchange(kAllLanes, Operands{left, {right0, right1}}, Site::current());
  for (int i = 0; i < 4; ++i) {
    const int row = emulated_cuda::Lane() / 4 + i / 2 * 8;
    const int column = emulated_cuda::Lane() % 4 * 2 + i % 2;
    float sum = 0.0F;
    for (int k = 0; k < 16; ++k)
      sum += Left<Elem>(lanes, row, k) * Right<Elem>(lanes, k, column);
    sums[i] += sum;
  }
}
template void MultiplyAdd<__nv_bfloat16>(float (&)[4], const LeftOperand&, uint32_t, uint32_t);
template void MultiplyAdd<__half>(float (&)[4], const LeftOperand&, uint32_t, uint32_t);

template <typename Elem>
uint32_t Pack(float low, float high) {
  const auto bits = [](float x) { return std::bit_cast<uint16_t>(FromFloat<Elem>(x)); };
  return bits(low) | static_cast<uint32_t>(bits(high)) << 16;
}
template uint32_t Pack<__nv_bfloat16>(float, float);
template uint32_t Pack<__half>(float, float);

void LoadMatrices(uint32_t (&words)[4], SharedAddress row) {
  Load(words, row, /*transposed=*/false, Site::current());
}

void LoadTransposed(uint32_t (&words)[4], SharedAddress row) {
  Load(words, row, /*transposed=*/true, Site::current());
}

template <int kBytes>
void BeginCopy(SharedAddress shared, const void* global, bool valid) {
  DSAT_CHECK(shared % kBytes == 0 && reinterpret_cast<uintptr_t>(global) % kBytes == 0,
             "cp.async of {} bytes that are not aligned", kBytes);
  CopiesOfThread().push_back(
      {reinterpret_cast<void*>(shared), valid ? global : nullptr, size_t{kBytes}});
}
template void BeginCopy<4>(SharedAddress, const void*, bool);
template void BeginCopy<16>(SharedAddress, const void*, bool);

void FinishCopies() {
  for (const Copy& copy : CopiesOfThread()) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  CopiesOfThread().clear();
}

float Exp2(float x) {
  return std::exp2(x);
}

}  // namespace dsat::engine::cuda
