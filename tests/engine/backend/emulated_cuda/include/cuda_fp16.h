// f16 as CUDA's header of this name has it, as far as dsat's kernels use it.
#pragma once

#include <cstdint>

#include "engine/core/half.h"

struct __half {
  uint16_t bits;
};

inline float __half2float(__half x) {
  return dsat::engine::ToFloat(dsat::engine::F16{x.bits});
}
inline __half __float2half_rn(float x) {
  return {dsat::engine::ToF16(x).bits};
}
