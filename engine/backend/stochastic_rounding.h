// Stochastic rounding to bf16: up or down at random, so that the mean is the exact number (Gupta et
// al. 2015). Updates of less than half a unit in the last place, which rounding to nearest always
// loses, are applied on average.
//
// Random bits are a function of (key, element): the same on every device, however state is cut,
// moved and kept. For .cc and .cu files.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DSAT_HOST_DEVICE __host__ __device__
#else
#define DSAT_HOST_DEVICE
#endif

namespace dsat::engine {

// The random bits of elements [begin, ...) of the tensor that the key belongs to.
struct RoundingBits {
  uint64_t key = 0;
  int64_t begin = 0;

  // 16 uniform bits, for element begin + i.
  DSAT_HOST_DEVICE uint32_t operator()(int64_t i) const {
    const auto index = static_cast<uint64_t>(begin + i);
    const uint32_t x = Mix(static_cast<uint32_t>(index) ^ static_cast<uint32_t>(key));
    return Mix(x + static_cast<uint32_t>(index >> 32) + static_cast<uint32_t>(key >> 32)) >> 16;
  }

 private:
  // A bijection in which each bit depends on each (lowbias32; Wellons 2018).
  DSAT_HOST_DEVICE static uint32_t Mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352DU;
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    return x ^ (x >> 16);
  }
};

// The bits of an f32 number rounded to bf16: still f32's, the lower half 0. Away from zero with a
// probability of the lower half / 2^16. Beyond the largest bf16 number lies infinity; infinity and
// NaN stay what they are.
DSAT_HOST_DEVICE inline uint32_t RoundAtRandom(uint32_t f32_bits, uint32_t random16) {
  const bool finite = (f32_bits & 0x7F800000U) != 0x7F800000U;
  const uint32_t quiet_nan = (f32_bits & 0x007FFFFFU) != 0 ? 0x00400000U : 0;
  return (finite ? f32_bits + random16 : f32_bits | quiet_nan) & 0xFFFF0000U;
}

}  // namespace dsat::engine
