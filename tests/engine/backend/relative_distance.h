// How far apart two vectors are.
#pragma once

#include <cmath>
#include <vector>

namespace dsat::engine {

// |a - b| / |b|. REQUIRES: they are equally long.
inline double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace dsat::engine
