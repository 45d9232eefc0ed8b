// Every kernel of layer_ops.h and optimizer_kernels.h behind one hook, which sees a call's operands
// before and after it, and may put others in their place. How tests watch and move what kernels
// work on.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend/any_kernels.h"
#include "engine/backend/stream.h"

namespace dsat::engine {

// Memory that a call works on: a tensor's, or any other. An empty one has no bytes.
class Operand {
 public:
  Operand(Tensor& t, int64_t) : pointer_(&t.data), bytes_(t.bytes()) {}
  template <typename T>
  Operand(T*& data, int64_t n) : pointer_(&data), bytes_(n * static_cast<int64_t>(sizeof(T))) {}

  void* data() const {
    void* data = nullptr;
    std::memcpy(&data, pointer_, sizeof(data));
    return data;
  }
  void set_data(void* data) const { std::memcpy(pointer_, &data, sizeof(data)); }
  int64_t bytes() const { return bytes_; }

 private:
  void* pointer_;  // The place of a pointer to the memory.
  int64_t bytes_;
};

class OperandHook {
 public:
  using Operands = std::span<const Operand>;
  virtual ~OperandHook() = default;
  // In the order of the kernel's Visit.
  virtual void Enter(Operands operands) = 0;
  virtual void Leave(Operands operands) = 0;
};

class HookedKernels final : public AnyKernels<HookedKernels> {
 public:
  HookedKernels(std::shared_ptr<Kernels> inner, std::shared_ptr<OperandHook> hook)
      : hook_(std::move(hook)), inner_(std::move(inner)) {}

  int64_t WorkspaceBytes() const override { return inner_->WorkspaceBytes(); }
  int64_t AttentionScratchBytes(const AttentionShape& shape) const override {
    return inner_->AttentionScratchBytes(shape);
  }
  void RunAny(auto op) {
    std::vector<Operand> operands;
    op.Visit([&](const char*, auto& operand, int64_t n) { operands.emplace_back(operand, n); });
    const struct Scope {
      OperandHook& hook;
      const std::vector<Operand>& operands;
      ~Scope() { hook.Leave(operands); }
    } scope{*hook_, operands};
    hook_->Enter(operands);
    inner_->Run(op);
  }

 private:
  const std::shared_ptr<OperandHook> hook_;  // Lives longer: it may own the device.
  const std::shared_ptr<Kernels> inner_;
};

// `inner` behind `hook`, with a stream of its own.
inline std::unique_ptr<Kernels> MakeHookedKernels(std::unique_ptr<Stream> stream,
                                                  std::shared_ptr<Kernels> inner,
                                                  std::shared_ptr<OperandHook> hook) {
  return std::make_unique<Kernels>(
      std::move(stream), std::make_unique<HookedKernels>(std::move(inner), std::move(hook)));
}

}  // namespace dsat::engine
