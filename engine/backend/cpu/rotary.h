// The angles of the rotary position embedding.
#ifndef DSAT_ENGINE_BACKEND_CPU_ROTARY_H_
#define DSAT_ENGINE_BACKEND_CPU_ROTARY_H_

#include <cstdint>
#include <span>
#include <vector>

namespace dsat::engine {

// Cosines and sines, kept from call to call: every block of a model rotates by the same angles.
class RotaryTable {
 public:
  // Makes the rows of positions [0, T).
  void Prepare(std::span<const float> frequencies, int64_t T);
  // The cosines of position t, then its sines: one of each per frequency. REQUIRES: t < T.
  const float* Row(int64_t t) const {
    return values_.data() + t * 2 * static_cast<int64_t>(frequencies_.size());
  }

 private:
  std::vector<float> frequencies_;
  int64_t T_ = 0;
  std::vector<float> values_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_ROTARY_H_
