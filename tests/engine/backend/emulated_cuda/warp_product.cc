// A warp of the emulated GPU for tests.
#include "tests/engine/backend/emulated_cuda/warp_product.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "engine/backend/cuda/device_math.h"
#include "engine/backend/cuda/tensor_core.h"

namespace dsat::engine {
namespace {

using cuda::LeftOperand;

void RunWarp(const std::function<void(int lane)>& body) {
  emulated_cuda::Launch launch;
  launch.block = dim3(cuda::kWarp);
  launch.thread = [&] { body(emulated_cuda::Lane()); };
  launch.shared = [] { return static_cast<void*>(&emulated_cuda::of_this_library); };
  emulated_cuda::RunGrid(launch, /*descending=*/false);
}

// Numbers as ldmatrix takes them.
struct alignas(16) Rows {
  uint16_t data[16 * 16];

  cuda::SharedAddress At(int row, int column, int width) const {
    return cuda::AddressOf(data + row * width + column);
  }
};

uint32_t Pair(uint16_t low, uint16_t high) {
  return low | static_cast<uint32_t>(high) << 16;
}

// Table "A" of mma.m16n8k16 with 16-bit elements: a_i of a lane, two of them in a register.
LeftOperand LeftByLayout(const std::vector<uint16_t>& a, int lane) {
  const int group = lane / 4, in_group = lane % 4;
  const auto element = [&](int i) {
    const bool upper = i % 4 < 2;
    const int row = upper ? group : group + 8;
    const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
    return a[static_cast<size_t>(row * 16 + column)];
  };
  LeftOperand left;
  for (int word = 0; word < 4; ++word)
    left.words[word] = Pair(element(2 * word), element(2 * word + 1));
  return left;
}

// Table "B".
uint32_t RightByLayout(const std::vector<uint16_t>& b, int lane, int word) {
  const auto element = [&](int i) {
    const int row = lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8);
    return b[static_cast<size_t>(row * 8 + lane / 4)];
  };
  return Pair(element(2 * word), element(2 * word + 1));
}

}  // namespace

void WarpProduct(std::vector<float>& c, const std::vector<uint16_t>& a,
                 const std::vector<uint16_t>& b, bool bf16, OperandSource source) {
  Rows a_rows, b_rows, bt_rows;
  std::copy(a.begin(), a.end(), a_rows.data);
  std::copy(b.begin(), b.end(), b_rows.data);
  for (int i = 0; i < 16 * 8; ++i)
    bt_rows.data[i % 8 * 16 + i / 8] = b[static_cast<size_t>(i)];
  RunWarp([&](int lane) {
    LeftOperand left;
    uint32_t right[4];
    if (source == OperandSource::kLayout) {
      left = LeftByLayout(a, lane);
      for (int word = 0; word < 2; ++word)
        right[word] = RightByLayout(b, lane, word);
    } else {
      cuda::LoadMatrices(left.words, a_rows.At(lane % 16, lane / 16 * 8, 16));
      if (source == OperandSource::kRows) {
        cuda::LoadMatrices(right, bt_rows.At(lane % 8, lane / 8 % 2 * 8, 16));
      } else {
        cuda::LoadTransposed(right, b_rows.At(lane % 16, 0, 8));
      }
    }
    // Table "C".
    const auto at = [&](int i) -> float& {
      const int row = lane / 4 + (i < 2 ? 0 : 8), column = lane % 4 * 2 + (i & 1);
      return c[static_cast<size_t>(row * 8 + column)];
    };
    float sums[4] = {at(0), at(1), at(2), at(3)};
    bf16 ? cuda::MultiplyAdd<__nv_bfloat16>(sums, left, right[0], right[1])
         : cuda::MultiplyAdd<__half>(sums, left, right[0], right[1]);
    for (int i = 0; i < 4; ++i)
      at(i) = sums[i];
  });
}

CopyStates CopyOf(const std::array<uint8_t, 16>& from, bool valid) {
  struct alignas(16) Place {
    std::array<uint8_t, 16> bytes;
  };
  const Place source{from};
  Place destination;
  destination.bytes.fill(0xAB);
  CopyStates states;
  RunWarp([&](int lane) {
    if (lane != 0) return;
    cuda::BeginCopy<16>(cuda::AddressOf(&destination), &source, valid);
    states.before = destination.bytes;
    cuda::FinishCopies();
    states.after = destination.bytes;
  });
  return states;
}

}  // namespace dsat::engine
