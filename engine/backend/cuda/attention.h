// Shared by the attention kernels: the layout of heads, and the choice between kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {

// Offsets of the first elements of head h (of queries) or g (of keys and values) of sequence b.
struct Heads {
  int64_t T, C, H, G, hd;
  int64_t qkv_stride;  // Elements of a row of qkv.
  float scale;

  __device__ int64_t KvHead(int64_t h) const { return h / (H / G); }
  __device__ int64_t Q(int64_t b, int64_t h) const { return b * T * qkv_stride + h * hd; }
  __device__ int64_t K(int64_t b, int64_t g) const { return Q(b, H + g); }
  __device__ int64_t V(int64_t b, int64_t g) const { return K(b, G + g); }
  __device__ int64_t Out(int64_t b, int64_t h) const { return b * T * C + h * hd; }
  __device__ int64_t Stat(int64_t b, int64_t h) const { return (b * H + h) * T; }  // lse, delta
};
inline Heads HeadsOf(const AttentionShape& s) {
  const int64_t hd = s.HeadChannels();
  const float scale = 1.0F / std::sqrt(static_cast<float>(hd));
  return {s.T, s.C, s.H, s.KvHeads(), hd, s.QkvChannels(), scale};
}

// How much shared memory a block can use on this GPU: 99 KiB on compute capability 8.6, 8.9 and 12,
// 163 KiB on 8.0, 227 KiB on 9.0 (CUDA C++ Programming Guide, "Compute Capabilities").
inline int MostSharedBytes() {
  static const int bytes = [] {
    int device = 0, most = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return most;
  }();
  return bytes;
}

// Lets the kernel use more shared memory than the default. The launch reports any error.
template <typename Kernel>
int AllowShared(Kernel kernel, int bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  return bytes;
}

// AttentionForward and AttentionBackward on tensor cores (attention_tensor_{forward,backward}.cu).
// REQUIRES: TensorCoresTake(op).
void TensorAttentionForward(const op::AttentionForward& op);
void TensorAttentionBackward(const op::AttentionBackward& op);

// Whether the tensor-core kernels support these operands. They copy rows 16 bytes at a time.
template <typename Op>
bool TensorCoresTake(const Op& op) {
  const int64_t hd = op.shape.HeadChannels();
  const auto is_aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  };
  bool aligned = is_aligned(op.out) && is_aligned(op.qkv);
  if constexpr (requires { op.dqkv; })
    aligned = aligned && is_aligned(op.dqkv) && is_aligned(op.dout);
  return op.qkv.dtype != DType::kF32 && hd % 8 == 0 && hd <= 128 && aligned;
}

}  // namespace dsat::engine::cuda
