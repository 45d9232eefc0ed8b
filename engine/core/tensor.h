// A borrowed, flat block of numbers. The functions that take tensors state their shapes.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace dsat::engine {

struct F16;  // engine/core/half.h

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr int64_t BytesPerElem(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

// `data` is nullptr on the counting backend, which allocates and computes nothing.
struct Tensor {
  void* data = nullptr;
  int64_t num_elems = 0;
  DType dtype = DType::kF32;

  float* f32() const {
    DSAT_CHECK(dtype == DType::kF32);
    return static_cast<float*>(data);
  }
  uint16_t* bf16() const {
    DSAT_CHECK(dtype == DType::kBF16);
    return static_cast<uint16_t*>(data);
  }
  F16* f16() const {
    DSAT_CHECK(dtype == DType::kF16);
    return static_cast<F16*>(data);
  }
  int64_t bytes() const { return num_elems * BytesPerElem(dtype); }
  // Elements [begin, begin + count).
  Tensor Slice(int64_t begin, int64_t count) const {
    DSAT_CHECK(begin >= 0 && count >= 0 && begin + count <= num_elems, "[{}, +{}) of {}", begin,
               count, num_elems);
    if (data == nullptr) return {nullptr, count, dtype};
    return {static_cast<char*>(data) + begin * BytesPerElem(dtype), count, dtype};
  }
};

}  // namespace dsat::engine
