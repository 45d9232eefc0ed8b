// The kernels of a device: one front that checks and counts, and the interfaces of the backends
// behind it.
//
// layer_ops.h and optimizer_kernels.h declare every kernel once, as a struct of its operands. A
// call is `kernels.Run(op::Add{y, a, b})`. A backend is a folder that implements AllKernels and
// Stream.
//
// Tensors and pointers, except op::LambMoments::sums, refer to memory of the backend's device. Only
// its kernels, its process group and the copies of its stream touch that memory, and they accept no
// other. On a CPU it is host
// memory. Kernels throw nothing except kUnavailable if a GPU fails. They keep the workspace that
// they need beyond their operands from call to call. The CPU backend's results do not depend on the
// number of threads, bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "engine/backend/layer_ops.h"

namespace dsat::engine {

class AllKernels;  // optimizer_kernels.h
class Stream;      // stream.h
enum class DeviceKind : uint8_t;

// "Add" for op::Add: the end of the type in the compiler's "... [with Op = dsat::engine::op::Add;
// ...]".
template <typename Op>
constexpr std::string_view NameOf() {
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find("Op = "));
  name = name.substr(0, name.find_first_of(";]"));
  return name.substr(name.rfind(':') + 1);
}

// Fails a DSAT_CHECK if `op` has an operand that is too small, or breaks another rule of its own.
template <typename Op>
void CheckOp(Op op) {
  if constexpr (requires { op.shape.Check(); }) op.shape.Check();
  if constexpr (requires { op.Check(); }) op.Check();
  op.Visit([](const char* name, const auto& operand, int64_t n) {
    if constexpr (std::is_same_v<decltype(operand), const Tensor&>) {
      DSAT_CHECK(operand.num_elems >= n, "{}: {} has {} elements; expected {}", NameOf<Op>(), name,
                 operand.num_elems, n);
    }
  });
}

// Bytes of the operands of `op`.
template <typename Op>
int64_t OperandBytes(Op op) {
  int64_t bytes = 0;
  op.Visit([&](const char*, const auto& operand, int64_t) {
    if constexpr (std::is_same_v<decltype(operand), const Tensor&>) bytes += operand.bytes();
  });
  return bytes;
}

// The interface that backends implement: a virtual function for each kernel of a list. REQUIRES:
// CheckOp has passed, and the kernel is not empty.
template <typename Op>
class RunsOp {
 public:
  virtual void Run(const Op& op) = 0;

 protected:
  ~RunsOp() = default;
};
template <typename Ops>
class Runs;
template <typename... Ops>
class Runs<OpList<Ops...>> : public RunsOp<Ops>... {
 public:
  virtual ~Runs() = default;
  using RunsOp<Ops>::Run...;
};

class LayerKernels : public Runs<op::LayerOps> {
 public:
  // Bytes of device memory that the backend always keeps for itself.
  virtual int64_t WorkspaceBytes() const { return 0; }
  // Bytes of f32 scratch that both attention kernels need.
  virtual int64_t AttentionScratchBytes(const AttentionShape& shape) const = 0;
};

// One per rank. Not thread-safe, except for its stream.
class Kernels final {
 public:
  Kernels(std::unique_ptr<Stream> stream, std::unique_ptr<AllKernels> backend);
  ~Kernels();

  Stream& stream() { return *stream_; }
  const Stream& stream() const { return *stream_; }

  // Checks the operands, counts the kernel's FLOPs and hands it to the backend. Kernels of
  // optimizers need optimizer_kernels.h.
  template <typename Op>
  void Run(const Op& op) {
    CheckOp(op);
    if constexpr (requires { op.Flops(); }) flops_ += op.Flops();
    if constexpr (requires { op.shape.Flops(); }) flops_ += op.shape.Flops();
    if constexpr (IsBoundByMemory<Op>()) moved_bytes_ += OperandBytes(op);
    if constexpr (requires { op.IsEmpty(); }) {
      if (op.IsEmpty()) return;
    }
    if constexpr (requires { op.shape.IsEmpty(); }) {
      if (op.shape.IsEmpty()) return;
    }
    if constexpr (std::is_base_of_v<RunsOp<Op>, LayerKernels>) {
      layers_.Run(op);
    } else {
      static_cast<RunsOp<Op>&>(*backend_).Run(op);
    }
  }

  // The number of floating-point operations asked for so far. Only matrix multiplications,
  // attention and convolutions count (DeepSpeed's convention).
  int64_t flops() const { return flops_; }
  // The bytes that the other kernels of layers have read and written so far. Embeddings, which read
  // few rows of their table, do not count.
  int64_t moved_bytes() const { return moved_bytes_; }

  int64_t WorkspaceBytes() const { return layers_.WorkspaceBytes(); }
  int64_t AttentionScratchBytes(const AttentionShape& shape) const {
    return layers_.AttentionScratchBytes(shape);
  }

 private:
  template <typename Op>
  static constexpr bool IsBoundByMemory() {
    if constexpr (requires(Op op) { op.Flops(); }) return false;
    if constexpr (requires(Op op) { op.shape.Flops(); }) return false;
    if constexpr (requires(Op op) { op.tokens; }) return false;
    return std::is_base_of_v<RunsOp<Op>, LayerKernels>;
  }

  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<AllKernels> backend_;
  LayerKernels& layers_;  // Part of `backend_`.
  int64_t flops_ = 0;
  int64_t moved_bytes_ = 0;
};

// oneDNN's matrix multiplications and vectorized loops of our own, on `num_threads` OpenMP threads.
std::unique_ptr<Kernels> MakeCpuKernels(int num_threads);
// Copies by `num_threads` OpenMP threads.
std::unique_ptr<Stream> MakeCpuStream(int num_threads);
// Computes nothing and counts FLOPs. Scratch and workspace sizes are those of the backend that it
// predicts: the CPU's with `num_threads` (the default), or CUDA's, and then it throws
// kUnimplemented for the same attention as CUDA.
std::unique_ptr<Kernels> MakeCountingKernels(int num_threads, DeviceKind kind = {});

}  // namespace dsat::engine
