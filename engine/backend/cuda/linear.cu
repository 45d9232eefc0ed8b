// Gradients of biases, and biases, where cuBLASLt does not make them with a product.
#include "engine/backend/cuda/column_sums.h"

namespace dsat::engine::cuda {
namespace {

template <typename T>
struct Column {
  const T* dy;
  int64_t N;
  __device__ float2 operator()(int64_t row, int64_t c) const {
    return {ToFloat(dy[row * N + c]), 0.0F};
  }
};

template <typename Y, typename B>
__global__ void AddBiasKernel(Y* y, const B* bias, int64_t n, int64_t N) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    y[i] = FromFloat<Y>(ToFloat(y[i]) + ToFloat(bias[i % N]));
}

}  // namespace

int64_t ColumnWorkspaceBytes(int64_t N, int64_t C) {
  return NumRowParts(N) * C * static_cast<int64_t>(sizeof(float2));
}

void BiasGrad(const View& db, const View& dy, int64_t M, int64_t N, void* workspace) {
  Visit(dy.type, [&](auto type) {
    using T = decltype(type);
    SumColumns<T>(db, {}, M, N, Column<T>{Data<T>(dy), N}, workspace);
  });
}

void AddBias(const View& y, const View& bias, int64_t M, int64_t N) {
  if (M * N == 0) return;
  Visit(y.type, [&](auto y_type) {
    Visit(bias.type, [&](auto bias_type) {
      Launch(AddBiasKernel<decltype(y_type), decltype(bias_type)>, {NumBlocks(M * N), kThreads},
             Data<decltype(y_type)>(y), Data<decltype(bias_type)>(bias), M * N, N);
    });
  });
}

}  // namespace dsat::engine::cuda
