// Kernels that treat a tensor as a flat list of numbers.
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

struct Constant {
  float value;
  __device__ float operator()() const { return value; }
};

struct Identity {
  __device__ float operator()(float x) const { return x; }
};

struct Times {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

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

}  // namespace

template <>
void RunOp(const op::Fill& op, CudaWorkspace&) {
  Map(op.t, Constant{op.value});
}

template <>
void RunOp(const op::Cast& op, CudaWorkspace&) {
  Visit(op.dst.dtype, [&]<typename Dst>(Dst) {
    Visit(op.src.dtype, [&]<typename Src>(Src) {
      Launch(MapKernel<Dst, Identity, Src>, {NumOctetBlocks(op.dst.num_elems), kThreads}, op.dst,
             op.dst.num_elems, Identity(), op.src);
    });
  });
}

template <>
void RunOp(const op::Accumulate& op, CudaWorkspace&) {
  Visit(op.dst.dtype, [&]<typename Dst>(Dst) {
    Visit(op.src.dtype, [&]<typename Src>(Src) {
      Launch(MapKernel<Dst, Plus, Src, Dst>, {NumOctetBlocks(op.dst.num_elems), kThreads}, op.dst,
             op.dst.num_elems, Plus(), op.src, op.dst);
    });
  });
}

template <>
void RunOp(const op::Scale& op, CudaWorkspace&) {
  Map(op.t, Times{op.factor}, op.t);
}

template <>
void RunOp(const op::Add& op, CudaWorkspace&) {
  Map(op.y, Plus(), op.a, op.b);
}

template <>
void RunOp(const op::SumOfSquares& op, CudaWorkspace& workspace) {
  auto* parts = static_cast<double*>(workspace.Get(kSumWorkspaceBytes));
  const int64_t n = op.t.num_elems;
  const int num_parts = NumSumBlocks(n);
  Visit(op.t.dtype, [&]<typename T>(T) {
    Launch(SquaresKernel<T>, {num_parts, kThreads}, parts, op.t, n);
  });
  Launch(SumKernel, {1, kThreads}, op.sum, parts, num_parts);
}

}  // namespace dsat::engine::cuda
