// A random order of many things without a list of them.
#include "engine/data/shuffle.h"

#include <array>
#include <bit>

#include "base/error.h"
#include "base/rng.h"

namespace dsat::engine {
namespace {

// The finalizer of SplitMix64 (Steele et al. 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

int64_t Shuffled(int64_t position, int64_t size, uint64_t seed, uint64_t epoch) {
  DSAT_CHECK(position >= 0 && position < size, "{} of {}", position, size);
  constexpr int kRounds = 4;
  const auto limit = static_cast<uint64_t>(size);
  const int half_bits = (std::bit_width(limit - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  Rng rng(seed, epoch, "shuffle");
  std::array<uint64_t, kRounds> keys;
  for (uint64_t& key : keys)
    key = rng.NextU64();
  auto value = static_cast<uint64_t>(position);
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (const uint64_t key : keys) {
      const uint64_t next = left ^ (Mix(right + key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= limit);
  return static_cast<int64_t>(value);
}

}  // namespace dsat::engine
