// A counter-based random number generator (Philox4x32-10; Salmon et al., SC'11).
//
// Draws are a pure function of (seed, stream, purpose, index). The distributions of <random> differ
// between standard libraries, so dsat has its own: a search replays to the same trials on every
// machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsat {

class Rng {
 public:
  // `stream` separates users of one seed (a trial number, a parameter's index); `purpose` separates
  // uses within one stream ("stage", "knobs"), so that adding a draw to one does not shift another.
  Rng(uint64_t seed, uint64_t stream, std::string_view purpose);

  uint64_t NextU64();

  // Uniform in [0, n) without modulo bias. REQUIRES: n > 0.
  uint64_t Below(uint64_t n);

  // Uniform in [0, 1) with 53 bits.
  double Uniform();

  // Standard normal (Box-Muller).
  double Normal();

  // Successes in n Bernoulli(p) draws. REQUIRES: n >= 0.
  int64_t Binomial(int64_t n, double p);

  // Makes the next NextU64() the index-th draw of this stream, so that threads can draw elements in
  // parallel.
  void Seek(uint64_t index);

 private:
  uint64_t key_ = 0;
  uint64_t stream_ = 0;
  uint64_t index_ = 0;  // The next 64-bit draw.
};

// A 64-bit hash of text (FNV-1a) that is the same in every run and on every machine.
uint64_t StableHash(std::string_view text);

}  // namespace dsat
