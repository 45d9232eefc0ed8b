// A libcudnn.so.9 on the emulated GPU that knows one graph: attention whose scores are masked. It
// checks the types and the presence of attributes, as the library does, and computes in f32 from
// the sizes and strides that the tensors have. Of its two engines the first cannot be used.
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backend/cuda/cudnn.h"
#include "engine/core/half.h"
#include "tests/engine/backend/emulated_cuda/gpu.h"
#include "tests/engine/backend/emulated_cuda/memory.h"

namespace fake_cudnn {
namespace {

using namespace dsat::engine::cudnn;
using dsat::engine::F16;
using emulated_cuda::Memory;

enum : Status { kSuccess = 0, kBadParam = 2000, kNotSupported = 3000, kExecutionFailed = 5000 };
constexpr int kEngineNumber = -1;  // The attribute of a config that this library alone has.
constexpr int64_t kWorkspaceBytes = 256;

// FakeCudnnSpoil's.
enum class Spoiled { kNothing, kLse, kOut, kExecute };
Spoiled spoiled = Spoiled::kNothing;
int num_runs = 0;

struct Node {
  int type = 0;
  bool is_finished = false;
  std::map<int, std::vector<int64_t>> values;  // Pointers as numbers.

  int64_t Value(int name) const { return values.at(name)[0]; }
  const Node& At(int name) const { return *reinterpret_cast<const Node*>(Value(name)); }
};

ValueType TypeOf(int attribute) {
  switch (attribute) {
    case kHeuristicMode:
      return kHeuristicModeValue;
    case kPlanHandle:
    case kGraphHandle:
      return kHandleValue;
    case kTensorType:
      return kDataTypeValue;
    case kTensorIsVirtual:
    case kTensorIsByValue:
      return kBooleanValue;
    case kTensorAlignment:
    case kTensorSizes:
    case kTensorStrides:
    case kTensorId:
    case kPointersIds:
    case kAttentionScoreInput:
    case kAttentionScoreOutput:
    case kPlanWorkspaceBytes:
      return kInt64Value;
    case kPointersData:
    case kPointersWorkspace:
      return kPointerValue;
    case kMaskComparison:
      return kComparisonValue;
    default:
      return kDescriptorValue;
  }
}

std::vector<int> NeededBy(int type) {
  switch (type) {
    case kTensor:
      return {kTensorAlignment, kTensorType, kTensorSizes, kTensorStrides, kTensorId};
    case kGraph:
      return {kGraphHandle, kGraphOperations};
    case kBandMask:
      return {kMaskInput, kMaskOutput, kMaskFill, kMaskShift, kMaskComparison};
    case kAttentionForward:
      return {kAttentionQ,          kAttentionK,          kAttentionV,
              kAttentionOut,        kAttentionLse,        kAttentionScale,
              kAttentionScoreGraph, kAttentionScoreInput, kAttentionScoreOutput};
    case kHeuristic:
      return {kHeuristicGraph, kHeuristicMode};
    case kPlan:
      return {kPlanHandle, kPlanConfig};
    case kPointers:
      return {kPointersIds, kPointersData, kPointersWorkspace};
    default:
      return {};
  }
}

// A tensor with its data.
struct Bound {
  const Node* tensor = nullptr;
  char* data = nullptr;

  int64_t Size(size_t i) const { return tensor->values.at(kTensorSizes)[i]; }
  char* Address(const std::vector<int64_t>& at, int64_t elem_bytes) const {
    int64_t offset = 0;
    for (size_t i = 0; i < at.size(); ++i)
      offset += at[i] * tensor->values.at(kTensorStrides)[i];
    return data + offset * elem_bytes;
  }
  bool IsHalf() const { return tensor->Value(kTensorType) == kHalf; }
  float Load(const std::vector<int64_t>& at) const {
    const uint16_t bits = *reinterpret_cast<const uint16_t*>(Address(at, 2));
    return IsHalf() ? ToFloat(F16{bits}) : std::bit_cast<float>(uint32_t{bits} << 16);
  }
  void Store(const std::vector<int64_t>& at, float x) const {
    const auto bits = std::bit_cast<uint32_t>(x);
    const auto bf16 = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    *reinterpret_cast<uint16_t*>(Address(at, 2)) = IsHalf() ? dsat::engine::ToF16(x).bits : bf16;
  }
};

struct Attention {
  Bound q, k, v, out, lse;
  float scale = 0, fill = 0;
  int32_t shift = 0;
  Spoiled spoiled = Spoiled::kNothing;

  void Row(int64_t b, int64_t h, int64_t t) const {
    const int64_t g = h / (q.Size(1) / k.Size(1)), hd = q.Size(3);
    std::vector<float> scores, sums(static_cast<size_t>(hd));
    float largest = -INFINITY, total = 0;
    for (int64_t j = 0; j < k.Size(2); ++j) {
      float dot = 0;
      for (int64_t c = 0; c < hd; ++c)
        dot += q.Load({b, h, t, c}) * k.Load({b, g, j, c});
      scores.push_back(t + shift >= j ? dot * scale : fill);
      largest = std::fmax(largest, scores.back());
    }
    for (int64_t j = 0; j < k.Size(2); ++j) {
      const float p = std::exp(scores[static_cast<size_t>(j)] - largest);
      total += p;
      for (int64_t c = 0; c < hd; ++c)
        sums[static_cast<size_t>(c)] += p * v.Load({b, g, j, c});
    }
    for (int64_t c = 0; c < hd; ++c) {
      const float off = spoiled == Spoiled::kOut && b + h + t + c == 0 ? 1.0F : 0.0F;
      out.Store({b, h, t, c}, sums[static_cast<size_t>(c)] / total + off);
    }
    *reinterpret_cast<float*>(lse.Address({b, h, t, 0}, sizeof(float))) =
        largest + std::log(total) + (spoiled == Spoiled::kLse ? 0.1F : 0.0F);
  }
  void Run() const {
    for (int64_t b = 0; b < q.Size(0); ++b)
      for (int64_t h = 0; h < q.Size(1); ++h)
        for (int64_t t = 0; t < q.Size(2); ++t)
          Row(b, h, t);
  }
};

struct Library {
  cudaStream_t stream = nullptr;
};

// The tensors of a plan with the pointers of their ids. False: a stored one is not on the device or
// not aligned.
bool Bind(const Node& plan, const Node& pointers, Attention& attention) {
  std::map<int64_t, char*> data;
  const auto& ids = pointers.values.at(kPointersIds);
  for (size_t i = 0; i < ids.size(); ++i)
    data[ids[i]] = reinterpret_cast<char*>(pointers.values.at(kPointersData).at(i));
  const auto of = [&](const Node& tensor) { return data.at(tensor.Value(kTensorId)); };
  const Node& op = plan.At(kPlanConfig).At(kHeuristicGraph).At(kGraphOperations);
  const Node& mask = op.At(kAttentionScoreGraph).At(kGraphOperations);
  bool fits = mask.Value(kMaskComparison) == kGreaterOrEqual &&
              mask.At(kMaskInput).Value(kTensorId) == op.Value(kAttentionScoreInput) &&
              mask.At(kMaskOutput).Value(kTensorId) == op.Value(kAttentionScoreOutput);
  const auto bind = [&](int name, Bound& bound) {
    bound = {&op.At(name), of(op.At(name))};
    const auto address = reinterpret_cast<int64_t>(bound.data);
    fits = fits && Memory::Get().Owns(bound.data) &&
           address % bound.tensor->Value(kTensorAlignment) == 0;
  };
  bind(kAttentionQ, attention.q);
  bind(kAttentionK, attention.k);
  bind(kAttentionV, attention.v);
  bind(kAttentionOut, attention.out);
  bind(kAttentionLse, attention.lse);
  attention.scale = *reinterpret_cast<const float*>(of(op.At(kAttentionScale)));
  attention.fill = *reinterpret_cast<const float*>(of(mask.At(kMaskFill)));
  attention.shift = *reinterpret_cast<const int32_t*>(of(mask.At(kMaskShift)));
  return fits;
}

}  // namespace
}  // namespace fake_cudnn

using namespace fake_cudnn;

extern "C" {

void FakeCudnnSpoil(int what) {
  spoiled = static_cast<Spoiled>(what);
}
int FakeCudnnNumRuns() {
  return num_runs;
}

size_t cudnnGetVersion() {
  return 92800;
}
const char* cudnnGetErrorString(Status status) {
  return status == kBadParam       ? "bad parameter"
         : status == kNotSupported ? "not supported"
                                   : "failed";
}
Status cudnnCreate(Handle* handle) {
  *handle = new Library;
  return kSuccess;
}
Status cudnnDestroy(Handle handle) {
  delete static_cast<Library*>(handle);
  return kSuccess;
}
Status cudnnSetStream(Handle handle, cudaStream_t stream) {
  static_cast<Library*>(handle)->stream = stream;
  return kSuccess;
}

Status cudnnBackendCreateDescriptor(int type, Descriptor* made) {
  *made = new Node{.type = type, .values = {}};
  return kSuccess;
}
Status cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  delete static_cast<Node*>(descriptor);
  return kSuccess;
}
Status cudnnBackendSetAttribute(Descriptor descriptor, int name, int type, int64_t count,
                                const void* data) {
  auto& node = *static_cast<Node*>(descriptor);
  if (node.is_finished || type != TypeOf(name)) return kBadParam;
  std::vector<int64_t>& values = node.values[name];
  for (int64_t i = 0; i < count; ++i) {
    if (type == kBooleanValue) {
      values.push_back(static_cast<const char*>(data)[i]);
    } else if (type == kDataTypeValue || type == kHeuristicModeValue || type == kComparisonValue) {
      values.push_back(static_cast<const int*>(data)[i]);
    } else {
      values.push_back(static_cast<const int64_t*>(data)[i]);
    }
    const bool links = type == kDescriptorValue && name != kPlanConfig;
    if (links && !reinterpret_cast<const Node*>(values.back())->is_finished) return kBadParam;
  }
  return kSuccess;
}
Status cudnnBackendFinalize(Descriptor descriptor) {
  auto& node = *static_cast<Node*>(descriptor);
  for (const int name : NeededBy(node.type))
    if (!node.values.contains(name)) return kBadParam;
  if (node.type == kPlan && node.At(kPlanConfig).Value(kEngineNumber) == 0) return kNotSupported;
  node.is_finished = true;
  return kSuccess;
}
Status cudnnBackendGetAttribute(Descriptor descriptor, int name, int type, int64_t wanted,
                                int64_t* found, void* data) {
  const auto& node = *static_cast<const Node*>(descriptor);
  if (!node.is_finished || type != TypeOf(name)) return kBadParam;
  *found = name == kHeuristicResults ? 2 : 1;
  if (data == nullptr) return kSuccess;
  if (wanted < *found) return kBadParam;
  if (name == kPlanWorkspaceBytes) {
    *static_cast<int64_t*>(data) = kWorkspaceBytes;
    return kSuccess;
  }
  for (int64_t i = 0; i < *found; ++i) {
    auto& config = *static_cast<Node* const*>(data)[i];
    config.values[kEngineNumber] = {i};
    config.values[kHeuristicGraph] = node.values.at(kHeuristicGraph);
  }
  return kSuccess;
}
Status cudnnBackendExecute(Handle handle, Descriptor plan, Descriptor pointers) {
  ++num_runs;
  if (spoiled == Spoiled::kExecute) return kExecutionFailed;
  const auto& bound = *static_cast<const Node*>(pointers);
  const auto* workspace = reinterpret_cast<const void*>(bound.Value(kPointersWorkspace));
  Attention attention;
  attention.spoiled = spoiled;
  if (!Memory::Get().Owns(workspace) || !Bind(*static_cast<const Node*>(plan), bound, attention))
    return kBadParam;
  auto& gpu = emulated_cuda::Gpu::Get();
  gpu.Enqueue(gpu.Find(static_cast<Library*>(handle)->stream), [attention] { attention.Run(); });
  return kSuccess;
}

}  // extern "C"
