// Rotary position embedding (Su et al. 2021).
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

// One pair of numbers per turn.
template <typename T>
__global__ void RotateKernel(T* x, RotaryArgs args) {
  const int64_t half = args.head_channels / 2;
  const int64_t row_pairs = args.heads * half;
  const int64_t n = args.B * args.T * row_pairs;
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const int64_t row = i / row_pairs;
    const int64_t head = i % row_pairs / half;
    const int64_t pair = i % half;
    // The angle in f32, as models are trained with.
    const float angle = static_cast<float>(row % args.T) * args.frequencies[pair];
    double sine = 0, cosine = 0;
    sincos(static_cast<double>(angle), &sine, &cosine);
    const float s = args.sign * static_cast<float>(sine);
    const auto c = static_cast<float>(cosine);
    T* low = x + row * args.stride + head * args.head_channels + pair;
    T* high = low + half;
    const float a = ToFloat(*low);
    const float b = ToFloat(*high);
    *low = FromFloat<T>(a * c - b * s);
    *high = FromFloat<T>(b * c + a * s);
  }
}

}  // namespace

void RotateInPlace(const View& x, const RotaryArgs& args) {
  const int64_t n = args.B * args.T * args.heads * args.head_channels / 2;
  if (n == 0) return;
  Visit(x.type, [&](auto type) {
    using T = decltype(type);
    Launch(RotateKernel<T>, {NumBlocks(n), kThreads}, Data<T>(x), args);
  });
}

}  // namespace dsat::engine::cuda
