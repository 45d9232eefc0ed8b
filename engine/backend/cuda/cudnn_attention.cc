// Attention's forward pass by cuDNN.
#include "engine/backend/cuda/cudnn_attention.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/launch_kernel.h"
#include "engine/core/half.h"

namespace dsat::engine {
namespace {

using cuda::AttentionArgs;
using cuda::Type;

constexpr int64_t kAlignment = 16;
constexpr int64_t kMostWorkspaceBytes = 1 << 20;  // A part of kCudaScratchBytes.
// The most that the results of two kernels in 16 bit may differ by: the norm of the difference, by
// the norm of the result; a number, by the largest; and the logarithms.
constexpr double kMostDistance = 0.01, kMostDifference = 0.04, kMostLseDifference = 0.002;

// True for the shapes that its fused kernels take on all GPUs that dsat supports.
bool IsSupported(const AttentionArgs& args) {
  const int64_t hd = args.C / args.H;
  bool aligned = true;
  for (const void* data : {args.qkv.data, args.out.data, args.lse.data})
    aligned = aligned && reinterpret_cast<uintptr_t>(data) % kAlignment == 0;
  return args.qkv.type != Type::kF32 && hd % 8 == 0 && hd <= 128 && aligned && args.B * args.T > 0;
}

enum Id : int64_t { kQ = 1, kK, kV, kOut, kLse, kScale, kFill, kShift, kScores, kMaskedScores };

void Check(const cudnn::Api& api, cudnn::Status status, const char* what) {
  if (status == 0) return;
  cudaGetLastError();  // Or the next launch would report it.
  Throw(ErrorCode::kUnavailable, "{}: {}", what, api.error_string(status));
}

// Descriptors that are destroyed together, the last one first.
class Descriptors {
 public:
  explicit Descriptors(const cudnn::Api& api) : api_(api) {}
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    for (; !all_.empty(); all_.pop_back())
      api_.descriptor_destroy(all_.back());
  }

  cudnn::Descriptor Make(cudnn::DescriptorType type) {
    cudnn::Descriptor made = nullptr;
    Check(api_, api_.descriptor_create(type, &made), "cudnnBackendCreateDescriptor");
    all_.push_back(made);
    return made;
  }
  template <typename T>
  void Set(cudnn::Descriptor at, cudnn::Attribute name, cudnn::ValueType type,
           const std::vector<T>& values) {
    Check(api_, api_.descriptor_set(at, name, type, std::ssize(values), values.data()),
          "cudnnBackendSetAttribute");
  }
  void Link(cudnn::Descriptor at, cudnn::Attribute name, cudnn::Descriptor to) {
    Set<cudnn::Descriptor>(at, name, cudnn::kDescriptorValue, {to});
  }
  cudnn::Descriptor Finish(cudnn::Descriptor at) {
    Check(api_, api_.descriptor_finalize(at), "cudnnBackendFinalize");
    return at;
  }

 private:
  const cudnn::Api& api_;
  std::vector<cudnn::Descriptor> all_;
};

std::vector<float> OnHost(CudaStream& stream, const cuda::View& view) {
  std::vector<float> numbers(static_cast<size_t>(view.n));
  if (view.type == Type::kF32) {
    stream.Download(numbers.data(), view.data, view.n * 4);
    return numbers;
  }
  std::vector<uint16_t> bits(numbers.size());
  stream.Download(bits.data(), view.data, view.n * 2);
  for (size_t i = 0; i < bits.size(); ++i) {
    numbers[i] = view.type == Type::kBF16 ? std::bit_cast<float>(uint32_t{bits[i]} << 16)
                                          : ToFloat(F16{bits[i]});
  }
  return numbers;
}

// False also if one is NaN.
bool AreNear(const std::vector<float>& actual, const std::vector<float>& expected) {
  double distance = 0, norm = 0, largest = 0, difference = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double off = double{actual[i]} - double{expected[i]};
    distance += off * off;
    norm += double{expected[i]} * double{expected[i]};
    difference = std::fmax(difference, std::abs(off));
    largest = std::fmax(largest, std::abs(double{expected[i]}));
  }
  return std::sqrt(distance) <= kMostDistance * std::sqrt(norm) &&
         difference <= kMostDifference * largest;
}

bool AreNearLse(const std::vector<float>& actual, const std::vector<float>& expected) {
  for (size_t i = 0; i < actual.size(); ++i) {
    const double off = std::abs(double{actual[i]} - double{expected[i]});
    if (!(off <= kMostLseDifference * std::fmax(1, std::abs(double{expected[i]})))) return false;
  }
  return true;
}

}  // namespace

// The graph of one operation, attention, whose scores go through another graph of one, the mask.
class CudnnAttention::Plan {
 public:
  // Throws if the library refuses a descriptor.
  Plan(const cudnn::Api& api, cudnn::Handle handle, const AttentionArgs& args)
      : api_(api), handle_(handle), all_(api) {
    const cudnn::Descriptor graph = GraphOf({Attention(args)});
    const cudnn::Descriptor heuristic = all_.Make(cudnn::kHeuristic);
    all_.Link(heuristic, cudnn::kHeuristicGraph, graph);
    all_.Set<int>(heuristic, cudnn::kHeuristicMode, cudnn::kHeuristicModeValue,
                  {cudnn::kBestHeuristics});
    // No engine at all is no error.
    if (api_.descriptor_finalize(heuristic) == 0) Choose(heuristic);
  }

  bool exists() const { return plan_ != nullptr; }

  void Execute(const AttentionArgs& args, CudaWorkspace& workspace) {
    const int64_t hd = args.C / args.H;
    float scale = 1.0F / std::sqrt(static_cast<float>(hd));
    float fill = -std::numeric_limits<float>::infinity();
    int32_t shift = 0;
    char* const q = static_cast<char*>(args.qkv.data);
    Descriptors made(api_);
    const cudnn::Descriptor pointers = made.Make(cudnn::kPointers);
    made.Set<int64_t>(pointers, cudnn::kPointersIds, cudnn::kInt64Value,
                      {kQ, kK, kV, kOut, kLse, kScale, kFill, kShift});
    made.Set<void*>(pointers, cudnn::kPointersData, cudnn::kPointerValue,
                    {q, q + 2 * args.C, q + 2 * (args.C + args.G * hd), args.out.data,
                     args.lse.data, &scale, &fill, &shift});
    made.Set<void*>(pointers, cudnn::kPointersWorkspace, cudnn::kPointerValue,
                    {workspace.Get(workspace_bytes_)});
    made.Finish(pointers);
    Check(api_, api_.set_stream(handle_, cuda::Stream()), "cudnnSetStream");
    Check(api_, api_.execute(handle_, plan_, pointers), "cudnnBackendExecute");
  }

 private:
  enum class Kind { kStored, kVirtual, kByValue };

  cudnn::Descriptor Tensor(Id id, cudnn::DataType type, const std::vector<int64_t>& sizes,
                           const std::vector<int64_t>& strides, Kind kind = Kind::kStored) {
    const cudnn::Descriptor tensor = all_.Make(cudnn::kTensor);
    all_.Set<int64_t>(tensor, cudnn::kTensorId, cudnn::kInt64Value, {id});
    all_.Set<int>(tensor, cudnn::kTensorType, cudnn::kDataTypeValue, {type});
    all_.Set<int64_t>(tensor, cudnn::kTensorAlignment, cudnn::kInt64Value,
                      {kind == Kind::kByValue ? int64_t{sizeof(float)} : kAlignment});
    all_.Set(tensor, cudnn::kTensorSizes, cudnn::kInt64Value, sizes);
    all_.Set(tensor, cudnn::kTensorStrides, cudnn::kInt64Value, strides);
    if (kind != Kind::kStored) {
      const auto name = kind == Kind::kVirtual ? cudnn::kTensorIsVirtual : cudnn::kTensorIsByValue;
      all_.Set<char>(tensor, name, cudnn::kBooleanValue, {1});
    }
    return all_.Finish(tensor);
  }
  cudnn::Descriptor Number(Id id, cudnn::DataType type) {
    return Tensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, Kind::kByValue);
  }
  cudnn::Descriptor GraphOf(const std::vector<cudnn::Descriptor>& operations) {
    const cudnn::Descriptor graph = all_.Make(cudnn::kGraph);
    all_.Set<cudnn::Handle>(graph, cudnn::kGraphHandle, cudnn::kHandleValue, {handle_});
    all_.Set(graph, cudnn::kGraphOperations, cudnn::kDescriptorValue, operations);
    return all_.Finish(graph);
  }

  cudnn::Descriptor Mask(const AttentionArgs& args) {
    const int64_t T = args.T;
    const auto scores = [&](Id id) {
      return Tensor(id, cudnn::kFloat, {args.B, args.H, T, T}, {args.H * T * T, T * T, T, 1},
                    Kind::kVirtual);
    };
    const cudnn::Descriptor mask = all_.Make(cudnn::kBandMask);
    all_.Link(mask, cudnn::kMaskInput, scores(kScores));
    all_.Link(mask, cudnn::kMaskOutput, scores(kMaskedScores));
    all_.Link(mask, cudnn::kMaskFill, Number(kFill, cudnn::kFloat));
    all_.Link(mask, cudnn::kMaskShift, Number(kShift, cudnn::kInt32));
    all_.Set<int>(mask, cudnn::kMaskComparison, cudnn::kComparisonValue, {cudnn::kGreaterOrEqual});
    return all_.Finish(mask);
  }

  cudnn::Descriptor Attention(const AttentionArgs& args) {
    const int64_t B = args.B, T = args.T, C = args.C, H = args.H, G = args.G, hd = C / H;
    const auto type = args.qkv.type == Type::kBF16 ? cudnn::kBfloat16 : cudnn::kHalf;
    const auto heads = [&](Id id, int64_t num_heads, int64_t row) {
      return Tensor(id, type, {B, num_heads, T, hd}, {T * row, hd, row, 1});
    };
    const int64_t row = C + 2 * G * hd;
    const cudnn::Descriptor attention = all_.Make(cudnn::kAttentionForward);
    all_.Link(attention, cudnn::kAttentionQ, heads(kQ, H, row));
    all_.Link(attention, cudnn::kAttentionK, heads(kK, G, row));
    all_.Link(attention, cudnn::kAttentionV, heads(kV, G, row));
    all_.Link(attention, cudnn::kAttentionOut, heads(kOut, H, C));
    all_.Link(attention, cudnn::kAttentionLse,
              Tensor(kLse, cudnn::kFloat, {B, H, T, 1}, {H * T, T, 1, 1}));
    all_.Link(attention, cudnn::kAttentionScale, Number(kScale, cudnn::kFloat));
    all_.Link(attention, cudnn::kAttentionScoreGraph, GraphOf({Mask(args)}));
    all_.Set<int64_t>(attention, cudnn::kAttentionScoreInput, cudnn::kInt64Value, {kScores});
    all_.Set<int64_t>(attention, cudnn::kAttentionScoreOutput, cudnn::kInt64Value, {kMaskedScores});
    return all_.Finish(attention);
  }

  // The library's first engine that can be used and needs little workspace.
  void Choose(cudnn::Descriptor heuristic) {
    int64_t count = 0;
    Check(api_,
          api_.descriptor_get(heuristic, cudnn::kHeuristicResults, cudnn::kDescriptorValue, 0,
                              &count, nullptr),
          "cudnnBackendGetAttribute");
    std::vector<cudnn::Descriptor> configs;
    for (int64_t i = 0; i < count; ++i)
      configs.push_back(all_.Make(cudnn::kEngineConfig));
    Check(api_,
          api_.descriptor_get(heuristic, cudnn::kHeuristicResults, cudnn::kDescriptorValue, count,
                              &count, configs.data()),
          "cudnnBackendGetAttribute");
    configs.resize(static_cast<size_t>(count));
    for (const cudnn::Descriptor config : configs) {
      const cudnn::Descriptor plan = all_.Make(cudnn::kPlan);
      all_.Set<cudnn::Handle>(plan, cudnn::kPlanHandle, cudnn::kHandleValue, {handle_});
      all_.Link(plan, cudnn::kPlanConfig, config);
      if (api_.descriptor_finalize(plan) != 0) continue;
      int64_t found = 0;
      Check(api_,
            api_.descriptor_get(plan, cudnn::kPlanWorkspaceBytes, cudnn::kInt64Value, 1, &found,
                                &workspace_bytes_),
            "cudnnBackendGetAttribute");
      if (workspace_bytes_ > kMostWorkspaceBytes) continue;
      plan_ = plan;
      return;
    }
  }

  const cudnn::Api& api_;
  const cudnn::Handle handle_;
  Descriptors all_;
  cudnn::Descriptor plan_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

CudnnAttention::CudnnAttention(std::shared_ptr<CudaWorkspace> workspace)
    : workspace_(std::move(workspace)) {}

CudnnAttention::~CudnnAttention() {
  plans_.clear();
  if (handle_ != nullptr) api_.destroy(handle_);
}

bool CudnnAttention::Forward(const AttentionArgs& args) {
  if (!is_usable_ || !IsSupported(args)) return false;
  if (!std::exchange(is_open_, true)) {
    is_usable_ = cudnn::Load(api_).empty();
    if (!is_usable_) return false;
  }
  try {
    Plan* const plan = PlanFor(args);
    if (plan == nullptr) return false;
    plan->Execute(args, *workspace_);
    return true;
  } catch (const Error& error) {
    is_usable_ = false;
    Log(LogLevel::kWarn, "attention uses no kernels of cuDNN",
        {{"version", api_.version()}, {"why", error.what()}});
    return false;
  }
}

CudnnAttention::Plan* CudnnAttention::PlanFor(const AttentionArgs& args) {
  const Key key = {args.B, args.T, args.C, args.H, args.G, args.qkv.type};
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second.get();
  if (handle_ == nullptr) Check(api_, api_.create(&handle_), "cudnnCreate");
  auto plan = std::make_unique<Plan>(api_, handle_, args);
  if (plan->exists()) {
    Compare(*plan, args);
  } else {
    plan = nullptr;
  }
  return (plans_[key] = std::move(plan)).get();
}

void CudnnAttention::Compare(Plan& plan, const AttentionArgs& args) {
  CudaStream& stream = workspace_->stream();
  const int64_t out_elems = args.B * args.T * args.C, lse_elems = args.B * args.H * args.T;
  const size_t out_bytes = static_cast<size_t>(out_elems * 2 + 255) / 256 * 256;
  stream.WaitWatched();
  const std::unique_ptr<void, cudaError_t (*)(void*)> scratch(
      AllocateOnGpu(out_bytes + static_cast<size_t>(lse_elems) * sizeof(float),
                    "a comparison with cuDNN"),
      cudaFree);
  AttentionArgs theirs = args;
  theirs.out = {scratch.get(), out_elems, args.qkv.type};
  theirs.lse = {static_cast<char*>(scratch.get()) + out_bytes, lse_elems, Type::kF32};
  cuda::Fill(theirs.out, std::numeric_limits<float>::quiet_NaN());
  cuda::Fill(theirs.lse, std::numeric_limits<float>::quiet_NaN());
  plan.Execute(theirs, *workspace_);
  cuda::AttentionForward(args);
  const bool near = AreNear(OnHost(stream, theirs.out),
                            OnHost(stream, {args.out.data, out_elems, args.qkv.type})) &&
                    AreNearLse(OnHost(stream, theirs.lse),
                               OnHost(stream, {args.lse.data, lse_elems, Type::kF32}));
  if (near) return;
  Throw(ErrorCode::kFailedPrecondition,
        "its results for B {}, T {}, {} heads of {} channels differ from those of our own kernel",
        args.B, args.T, args.H, args.C / args.H);
}

}  // namespace dsat::engine
