// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11).
#include "base/rng.h"

#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace dsat {
namespace {

using Block = std::array<uint32_t, 4>;

Block Philox(Block counter, uint32_t key0, uint32_t key1) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

}  // namespace

uint64_t StableHash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

Rng::Rng(uint64_t seed, uint64_t stream, std::string_view purpose)
    : key_(seed ^ (StableHash(purpose) * 0x9E3779B97F4A7C15)), stream_(stream) {}

uint64_t Rng::NextU64() {
  // One Philox block holds two 64-bit draws.
  const uint64_t block_index = index_ / 2;
  const Block block = Philox({static_cast<uint32_t>(block_index),
                              static_cast<uint32_t>(block_index >> 32),
                              static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                             static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32));
  const size_t half = 2 * (index_++ % 2);
  return (static_cast<uint64_t>(block[half + 1]) << 32) | block[half];
}

uint64_t Rng::Below(uint64_t n) {
  DSAT_CHECK(n > 0);
  const uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  for (;;) {
    const uint64_t draw = NextU64();
    if (draw < limit) return draw % n;
  }
}

double Rng::Uniform() { return static_cast<double>(NextU64() >> 11) * 0x1.0p-53; }

double Rng::Normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * Uniform());
}

int64_t Rng::Binomial(int64_t n, double p) {
  DSAT_CHECK(n >= 0);
  int64_t successes = 0;
  for (int64_t i = 0; i < n; ++i) successes += Uniform() < p ? 1 : 0;
  return successes;
}

void Rng::Seek(uint64_t index) { index_ = index; }

}  // namespace dsat
