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

void ConvertOrAdd(const Tensor& dst, const Tensor& src, bool accumulate) {
  const int64_t n = dst.num_elems;
  if (n == 0) return;
  Visit(dst.dtype, [&](auto to) {
    Visit(src.dtype, [&](auto from) {
      Launch(ConvertKernel<decltype(to), decltype(from)>, {NumOctetBlocks(n), kThreads},
             Data<decltype(to)>(dst), Data<decltype(from)>(src), n, accumulate);
    });
  });
}

}  // namespace

template <>
void RunOp(const op::Fill& op, CudaWorkspace&) {
  const int64_t n = op.t.num_elems;
  if (n == 0) return;
  Visit(op.t.dtype, [&](auto type) {
    using T = decltype(type);
    Launch(FillKernel<T>, {NumOctetBlocks(n), kThreads}, Data<T>(op.t), n, op.value);
  });
}

template <>
void RunOp(const op::Cast& op, CudaWorkspace&) {
  ConvertOrAdd(op.dst, op.src, /*accumulate=*/false);
}

template <>
void RunOp(const op::Accumulate& op, CudaWorkspace&) {
  ConvertOrAdd(op.dst, op.src, /*accumulate=*/true);
}

template <>
void RunOp(const op::Scale& op, CudaWorkspace&) {
  const int64_t n = op.t.num_elems;
  if (n == 0) return;
  Visit(op.t.dtype, [&](auto type) {
    using T = decltype(type);
    Launch(ScaleKernel<T>, {NumOctetBlocks(n), kThreads}, Data<T>(op.t), n, op.factor);
  });
}

template <>
void RunOp(const op::Add& op, CudaWorkspace&) {
  const int64_t n = op.y.num_elems;
  if (n == 0) return;
  Visit(op.y.dtype, [&](auto type) {
    using T = decltype(type);
    Launch(AddKernel<T>, {NumOctetBlocks(n), kThreads}, Data<T>(op.y), Data<T>(op.a), Data<T>(op.b),
           n);
  });
}

template <>
void RunOp(const op::SumOfSquares& op, CudaWorkspace& workspace) {
  auto* parts = static_cast<double*>(workspace.Get(kSumWorkspaceBytes));
  const int64_t n = op.t.num_elems;
  const int num_parts = NumSumBlocks(n);
  Visit(op.t.dtype, [&](auto type) {
    using T = decltype(type);
    Launch(SquaresKernel<T>, {num_parts, kThreads}, parts, Data<T>(op.t), n);
  });
  Launch(SumKernel, {1, kThreads}, op.sum, parts, num_parts);
}

}  // namespace dsat::engine::cuda
