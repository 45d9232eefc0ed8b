// Token and position embeddings.
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

template <typename T>
__global__ void ForwardKernel(T* y, const int32_t* tokens, const T* wte, const T* wpe, int64_t T_,
                              int64_t C) {
  const int64_t row = blockIdx.x;
  const T* word = wte + tokens[row] * C;
  const T* position = wpe + row % T_ * C;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    y[row * C + c] =
        wpe == nullptr ? word[c] : FromFloat<T>(ToFloat(word[c]) + ToFloat(position[c]));
  }
}

// The block of a token's first row adds up all of them: no two write the same row of dwte, and the
// order of the sum is fixed.
template <typename T>
__global__ void TokenGradKernel(T* dwte, const T* dy, const int32_t* tokens, int64_t N, int64_t C) {
  const int64_t first = blockIdx.x;
  const int32_t token = tokens[first];
  int seen = 0;
  for (int64_t row = threadIdx.x; row < first; row += kThreads)
    seen |= tokens[row] == token ? 1 : 0;
  if (__syncthreads_or(seen) != 0) return;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    float sum = 0.0F;
    for (int64_t row = first; row < N; ++row) {
      if (tokens[row] == token) sum += ToFloat(dy[row * C + c]);
    }
    T& out = dwte[token * C + c];
    out = FromFloat<T>(ToFloat(out) + sum);
  }
}

template <typename T>
__global__ void PositionGradKernel(T* dwpe, const T* dy, int64_t B, int64_t T_, int64_t C) {
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    float sum = 0.0F;
    for (int64_t b = 0; b < B; ++b)
      sum += ToFloat(dy[(b * T_ + t) * C + c]);
    T& out = dwpe[t * C + c];
    out = FromFloat<T>(ToFloat(out) + sum);
  }
}

__global__ void WindowsKernel(int32_t* windows, const int32_t* tokens, int64_t n, int64_t T,
                              int64_t context) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const int64_t row = i / context;
    const int64_t back = context - 1 - i % context;  // Tokens before the row's own.
    windows[i] = back > row % T ? 0 : tokens[row - back];
  }
}

}  // namespace

void EmbeddingForward(const View& y, const int32_t* tokens, const View& wte, const View& wpe,
                      int64_t B, int64_t T, int64_t C) {
  if (B * T == 0) return;
  Visit(y.type, [&](auto type) {
    using Elem = decltype(type);
    Launch(ForwardKernel<Elem>, {static_cast<unsigned>(B * T), kThreads}, Data<Elem>(y), tokens,
           Data<Elem>(wte), Data<Elem>(wpe), T, C);
  });
}

void EmbeddingBackward(const View& dwte, const View& dwpe, const View& dy, const int32_t* tokens,
                       int64_t B, int64_t T, int64_t C) {
  if (B * T == 0) return;
  Visit(dy.type, [&](auto type) {
    using Elem = decltype(type);
    Launch(TokenGradKernel<Elem>, {static_cast<unsigned>(B * T), kThreads}, Data<Elem>(dwte),
           Data<Elem>(dy), tokens, B * T, C);
    if (dwpe.data == nullptr) return;
    Launch(PositionGradKernel<Elem>, {static_cast<unsigned>(T), kThreads}, Data<Elem>(dwpe),
           Data<Elem>(dy), B, T, C);
  });
}

void TokenWindows(int32_t* windows, const int32_t* tokens, int64_t B, int64_t T, int64_t context) {
  const int64_t n = B * T * context;
  if (n == 0) return;
  Launch(WindowsKernel, {NumBlocks(n), kThreads}, windows, tokens, n, T, context);
}

}  // namespace dsat::engine::cuda
