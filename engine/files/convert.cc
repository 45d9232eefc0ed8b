// Numbers from one storage type to another.
#include "engine/files/convert.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "engine/core/half.h"

namespace dsat::engine {
namespace {

struct BFloat16 {
  uint16_t bits;
};

float ToFloat(float x) {
  return x;
}
float ToFloat(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

void Set(float& y, float x) {
  y = x;
}
void Set(F16& y, float x) {
  y = ToF16(x);
}
void Set(BFloat16& y, float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const uint32_t rounded = nan ? bits | 0x400000U : bits + 0x7FFFU + ((bits >> 16) & 1U);
  y.bits = static_cast<uint16_t>(rounded >> 16);
}

// Calls fn with a pointer of the type that stores the tensor's elements.
template <typename Fn>
void VisitElems(const Tensor& tensor, const Fn& fn) {
  switch (tensor.dtype) {
    case DType::kF32:
      return fn(static_cast<float*>(tensor.data));
    case DType::kBF16:
      return fn(static_cast<BFloat16*>(tensor.data));
    case DType::kF16:
      return fn(static_cast<F16*>(tensor.data));
  }
}

}  // namespace

void ConvertElems(const Tensor& dst, const Tensor& src) {
  DSAT_CHECK(dst.num_elems == src.num_elems);
  if (dst.dtype == src.dtype) {
    if (src.num_elems > 0) std::memcpy(dst.data, src.data, static_cast<size_t>(src.bytes()));
    return;
  }
  VisitElems(dst, [&](auto* to) {
    VisitElems(src, [&](const auto* from) {
      for (int64_t i = 0; i < src.num_elems; ++i)
        Set(to[i], ToFloat(from[i]));
    });
  });
}

}  // namespace dsat::engine
