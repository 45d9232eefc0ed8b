// Rotary position embedding (Su et al. 2021).
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

constexpr int64_t kMaxPairs = 256;

// Kernels read the frequencies from their arguments.
struct Rotation {
  RotaryShape shape;
  float sign = 1;
  float frequencies[kMaxPairs] = {};
};

// One pair of numbers per turn.
template <typename T>
__global__ void RotateKernel(T* x, Rotation rotation) {
  const RotaryShape& args = rotation.shape;
  const int64_t half = args.head_channels / 2;
  const int64_t row_pairs = args.heads * half;
  const int64_t n = args.B * args.T * row_pairs;
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const int64_t row = i / row_pairs;
    const int64_t head = i % row_pairs / half;
    const int64_t pair = i % half;
    // The angle in f32, as models are trained with.
    const float angle = static_cast<float>(row % args.T) * rotation.frequencies[pair];
    double sine = 0, cosine = 0;
    sincos(static_cast<double>(angle), &sine, &cosine);
    const float s = rotation.sign * static_cast<float>(sine);
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

template <>
void RunOp(const op::RotateInPlace& op, CudaWorkspace&) {
  const RotaryShape& shape = op.shape;
  const int64_t n = shape.B * shape.T * shape.heads * shape.head_channels / 2;
  DSAT_CHECK(std::ssize(op.frequencies) <= kMaxPairs, "{} frequencies", op.frequencies.size());
  Rotation rotation{.shape = shape, .sign = op.negative ? -1.0F : 1.0F};
  std::ranges::copy(op.frequencies, rotation.frequencies);
  Visit(op.x.dtype, [&]<typename T>(T) {
    Launch(RotateKernel<T>, {NumBlocks(n), kThreads}, op.x, rotation);
  });
}

}  // namespace dsat::engine::cuda
