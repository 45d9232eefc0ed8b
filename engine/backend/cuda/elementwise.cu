// Kernels that treat a tensor as a flat list of numbers.
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

template <typename T>
__global__ void FillKernel(T* out, int64_t n, float value) {
  Octet values;
  for (float& x : values.x)
    x = value;
  for (int64_t i = FirstOctet(); i < n; i += OctetStride())
    StoreOctet(out, i, n, values);
}

template <typename Dst, typename Src>
__global__ void ConvertKernel(Dst* out, const Src* in, int64_t n, bool accumulate) {
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    Octet values = LoadOctet(in, i, n);
    if (accumulate) {
      const Octet before = LoadOctet(out, i, n);
      for (int j = 0; j < kOctet; ++j)
        values[j] += before[j];
    }
    StoreOctet(out, i, n, values);
  }
}

template <typename T>
__global__ void ScaleKernel(T* data, int64_t n, float factor) {
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    Octet values = LoadOctet(data, i, n);
    for (float& x : values.x)
      x *= factor;
    StoreOctet(data, i, n, values);
  }
}

template <typename T>
__global__ void AddKernel(T* out, const T* a, const T* b, int64_t n) {
  for (int64_t i = FirstOctet(); i < n; i += OctetStride()) {
    Octet sums = LoadOctet(a, i, n);
    const Octet more = LoadOctet(b, i, n);
    for (int j = 0; j < kOctet; ++j)
      sums[j] += more[j];
    StoreOctet(out, i, n, sums);
  }
}

template <typename T>
__global__ void SquaresKernel(double* parts, const T* data, int64_t n) {
  constexpr int kUnderWay = 4;  // Octets that are loaded at once.
  double sum = 0;
  for (int64_t i = FirstOctet(); i < n; i += kUnderWay * OctetStride()) {
    PackedOctet<T> octets[kUnderWay];
    for (int k = 0; k < kUnderWay; ++k)
      octets[k] = LoadPacked(data, i + k * OctetStride(), n);
    for (const PackedOctet<T>& octet : octets) {
      const Octet values = Unpack(octet);
      for (const double x : values.x)
        sum += x * x;
    }
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
      Launch(ConvertKernel<decltype(to), decltype(from)>, {NumOctetBlocks(dst.n), kThreads},
             Data<decltype(to)>(dst), Data<decltype(from)>(src), dst.n, accumulate);
    });
  });
}

}  // namespace

void Fill(const View& t, float value) {
  if (t.n == 0) return;
  Visit(t.type, [&](auto type) {
    Launch(FillKernel<decltype(type)>, {NumOctetBlocks(t.n), kThreads}, Data<decltype(type)>(t),
           t.n, value);
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
    Launch(ScaleKernel<decltype(type)>, {NumOctetBlocks(t.n), kThreads}, Data<decltype(type)>(t),
           t.n, factor);
  });
}

void Add(const View& y, const View& a, const View& b) {
  if (y.n == 0) return;
  Visit(y.type, [&](auto type) {
    using T = decltype(type);
    Launch(AddKernel<T>, {NumOctetBlocks(y.n), kThreads}, Data<T>(y), Data<T>(a), Data<T>(b), y.n);
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
