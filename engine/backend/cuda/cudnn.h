// The part of cuDNN that the CUDA backend calls, by its documented names and numbers (cuDNN
// documentation, "Backend API"; the numbers are those of cudnn_graph.h). Building needs no headers
// of it, and it is used only where it is found.
#ifndef DSAT_ENGINE_BACKEND_CUDA_CUDNN_H_
#define DSAT_ENGINE_BACKEND_CUDA_CUDNN_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace dsat::engine::cudnn {

using Handle = void*;
using Descriptor = void*;
using Status = int;  // 0: success.

enum DescriptorType : int {
  kEngineConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kGraph = 15,
  kPointers = 16,  // The "variant pack".
  kTensor = 17,
  kAttentionForward = 41,
  kBandMask = 44
};
// The type of an attribute's value.
enum ValueType : int {
  kHandleValue = 0,
  kDataTypeValue = 1,
  kBooleanValue = 2,
  kInt64Value = 3,
  kPointerValue = 6,
  kHeuristicModeValue = 8,
  kComparisonValue = 14,
  kDescriptorValue = 15
};
enum Attribute : int {
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspaceBytes = 402,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,  // In elements.
  kTensorId = 906,
  kTensorIsVirtual = 907,  // It is never stored.
  kTensorIsByValue = 908,  // The pointer is the host's.
  kPointersIds = 1000,
  kPointersData = 1001,
  kPointersWorkspace = 1003,
  kAttentionQ = 2800,
  kAttentionK = 2801,
  kAttentionV = 2802,
  kAttentionOut = 2803,
  kAttentionLse = 2804,  // (B, H, T, 1) f32, natural logarithms of sums of scaled scores.
  kAttentionScale = 2805,
  kAttentionScoreGraph = 2811,  // The graph of operations on scaled scores.
  kAttentionScoreInput = 2812,  // The graph's first tensor; the next one is its last.
  kAttentionScoreOutput = 2813,
  kMaskInput = 3000,
  kMaskShift = 3004,  // With kGreaterOrEqual, the scores with row + shift >= column stay.
  kMaskFill = 3005,   // The number that replaces the other scores.
  kMaskOutput = 3006,
  kMaskComparison = 3007
};
enum DataType : int { kFloat = 0, kHalf = 2, kInt32 = 4, kBfloat16 = 9 };
constexpr int kGreaterOrEqual = 303;
constexpr int kBestHeuristics = 3;  // CUDNN_HEUR_MODE_A.

struct Api {
  size_t (*version)();  // 92800 is 9.28.0.
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Status (*set_stream)(Handle, cudaStream_t);
  Status (*descriptor_create)(int type, Descriptor*);
  Status (*descriptor_destroy)(Descriptor);
  Status (*descriptor_set)(Descriptor, int attribute, int type, int64_t count, const void*);
  Status (*descriptor_get)(Descriptor, int attribute, int type, int64_t wanted, int64_t* found,
                           void*);
  Status (*descriptor_finalize)(Descriptor);
  Status (*execute)(Handle, Descriptor plan, Descriptor pointers);
  const char* (*error_string)(Status);
};

// Opens libcudnn.so.9, which is never closed. Returns "", or the reason why that failed. The first
// version that masks scores within attention is 9.21.
std::string Load(Api& api);

}  // namespace dsat::engine::cudnn

#endif  // DSAT_ENGINE_BACKEND_CUDA_CUDNN_H_
