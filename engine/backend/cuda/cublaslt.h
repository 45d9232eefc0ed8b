// The part of cuBLASLt that the CUDA backend calls, by its documented names and numbers (cuBLAS
// documentation, chapter "Using the cuBLASLt API"). Building needs no headers of it, and starting
// does not need the library.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace dsat::engine::cublaslt {

using Handle = void*;
using Descriptor = void*;  // Describes a product, a matrix or a preference.
using Status = int;        // 0: success.
constexpr Status kAllocationFailed = 3;
constexpr Status kNotSupported = 15;

enum Operation : int32_t { kNormal = 0, kTransposed = 1 };
enum ComputeType : int { kCompute32F = 68 };
enum ProductAttribute : int {
  kTransposeA = 3,
  kTransposeB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,  // (rows of D) of D's type: a bias, or a gradient of one.
  kAuxPointer = 11,  // (rows of D, columns of D) of D's type: GELU's input.
  kAuxStride = 12    // Its leading dimension, of 64 bits, a multiple of 8.
};
// The operation that is applied to A B + C to give D. The two with a bias add it before GELU.
enum Epilogue : uint32_t {
  kNoEpilogue = 1,
  kAddBias = 4,
  kGeluAux = 32 | 128,  // GELU; its input is written.
  kGeluAuxBias = kGeluAux | kAddBias,
  kGeluGradient = 64 | 128,  // Times GELU's derivative at the input, which is read.
  kBiasGradientA = 256       // The sums of A's rows are written; A is not transposed.
};
enum PreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,
  kReductionSchemes = 3,  // A mask of 32 bits.
  kMinAlignmentA = 5,
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8
};

// How the parts of a product whose sums are split are added: in the type that products are computed
// in. The library's other schemes add in the result's type and round each part to it.
constexpr uint32_t kInComputeType = 2;

struct Algorithm {
  uint64_t data[8];
};
struct Choice {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

struct Api {
  std::string path;  // The path of the library.
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Status (*product_create)(Descriptor*, int compute_type, int scale_type);
  Status (*product_set)(Descriptor, int attribute, const void*, size_t);
  Status (*product_destroy)(Descriptor);
  Status (*matrix_create)(Descriptor*, int type, uint64_t rows, uint64_t cols, int64_t stride);
  Status (*matrix_destroy)(Descriptor);
  Status (*preference_create)(Descriptor*);
  Status (*preference_set)(Descriptor, int attribute, const void*, size_t);
  Status (*preference_destroy)(Descriptor);
  Status (*choose)(Handle, Descriptor product, Descriptor a, Descriptor b, Descriptor c,
                   Descriptor d, Descriptor preference, int wanted, Choice*, int* found);
  Status (*multiply)(Handle, Descriptor product, const void* alpha, const void* a, Descriptor,
                     const void* b, Descriptor, const void* beta, const void* c, Descriptor,
                     void* d, Descriptor, const Algorithm*, void* workspace, size_t, cudaStream_t);
};

// Opens the library of the toolkit's major version, which is never closed. Returns "", or the
// reason why that failed.
std::string Load(Api& api);

}  // namespace dsat::engine::cublaslt
