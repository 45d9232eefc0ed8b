// Kernels that treat a tensor as a flat list of numbers.
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

template <typename T>
__global__ void FillKernel(T* out, int64_t n, float value) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    out[i] = FromFloat<T>(value);
}

template <typename Dst, typename Src>
__global__ void ConvertKernel(Dst* out, const Src* in, int64_t n, bool accumulate) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const float before = accumulate ? ToFloat(out[i]) : 0.0F;
    const float value = ToFloat(in[i]);
    out[i] = FromFloat<Dst>(accumulate ? before + value : value);
  }
}

template <typename T>
__global__ void ScaleKernel(T* data, int64_t n, float factor) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    data[i] = FromFloat<T>(ToFloat(data[i]) * factor);
}

template <typename T>
__global__ void AddKernel(T* out, const T* a, const T* b, int64_t n) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    out[i] = FromFloat<T>(ToFloat(a[i]) + ToFloat(b[i]));
}

template <typename T>
__global__ void SquaresKernel(double* parts, const T* data, int64_t n) {
  double sum = 0;
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const double x = ToFloat(data[i]);
    sum += x * x;
  }
  sum = BlockReduce(sum, Plus());
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void SumKernel(double* sum, const double* parts, int num_parts) {
  const double total = SumParts(parts, num_parts);
  if (threadIdx.x == 0) *sum = total;
}

void ConvertOrAdd(const View& dst, const View& src, bool accumulate) {
  if (dst.n == 0) return;
  Visit(dst.type, [&](auto to) {
    Visit(src.type, [&](auto from) {
      Launch(ConvertKernel<decltype(to), decltype(from)>, {NumBlocks(dst.n), kThreads},
             Data<decltype(to)>(dst), Data<decltype(from)>(src), dst.n, accumulate);
    });
  });
}

}  // namespace

void Fill(const View& t, float value) {
  if (t.n == 0) return;
  Visit(t.type, [&](auto type) {
    Launch(FillKernel<decltype(type)>, {NumBlocks(t.n), kThreads}, Data<decltype(type)>(t), t.n,
           value);
  });
}

void Convert(const View& dst, const View& src) {
  ConvertOrAdd(dst, src, /*accumulate=*/false);
}

void Accumulate(const View& dst, const View& src) {
  ConvertOrAdd(dst, src, /*accumulate=*/true);
}

void Scale(const View& t, float factor) {
  if (t.n == 0) return;
  Visit(t.type, [&](auto type) {
    Launch(ScaleKernel<decltype(type)>, {NumBlocks(t.n), kThreads}, Data<decltype(type)>(t), t.n,
           factor);
  });
}

void Add(const View& y, const View& a, const View& b) {
  if (y.n == 0) return;
  Visit(y.type, [&](auto type) {
    using T = decltype(type);
    Launch(AddKernel<T>, {NumBlocks(y.n), kThreads}, Data<T>(y), Data<T>(a), Data<T>(b), y.n);
  });
}

int64_t SumWorkspaceBytes() {
  return kMaxSumBlocks * static_cast<int64_t>(sizeof(double));
}

void SumOfSquares(double* sum, const View& t, void* workspace) {
  auto* parts = static_cast<double*>(workspace);
  const int num_parts = NumSumBlocks(t.n);
  Visit(t.type, [&](auto type) {
    Launch(SquaresKernel<decltype(type)>, {num_parts, kThreads}, parts, Data<decltype(type)>(t),
           t.n);
  });
  Launch(SumKernel, {1, kThreads}, sum, parts, num_parts);
}

}  // namespace dsat::engine::cuda
