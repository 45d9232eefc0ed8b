// Kernels and copies behind the guard: they open the pages, and take device memory only.
#include <optional>
#include <utility>

#include "base/error.h"
#include "tests/engine/backend/guarded_device.h"
#include "tests/engine/backend/operand_kernels.h"

namespace dsat::engine {
namespace {

class GuardedStream final : public Stream {
 public:
  explicit GuardedStream(GuardedMemory& memory) : memory_(memory) {}

  void Upload(void* device, const void* host, int64_t bytes) override {
    CheckSides(device, host, bytes);
    const GuardedMemory::Access access(memory_);
    inner_->Upload(device, host, bytes);
  }
  void Download(void* host, const void* device, int64_t bytes) override {
    CheckSides(device, host, bytes);
    const GuardedMemory::Access access(memory_);
    inner_->Download(host, device, bytes);
  }

 private:
  void CheckSides(const void* device, const void* host, int64_t bytes) {
    if (bytes == 0) return;
    DSAT_CHECK(memory_.Holds(device, bytes) && !memory_.Holds(host), "{} bytes", bytes);
  }

  GuardedMemory& memory_;
  const std::unique_ptr<Stream> inner_ = MakeCpuStream(1);
};

class Guard final : public OperandHook {
 public:
  explicit Guard(GuardedMemory& memory) : memory_(memory) {}

  void Enter(Operands operands) override {
    for (size_t i = 0; i < operands.size(); ++i) {
      const int64_t bytes = operands[i].bytes();
      DSAT_CHECK(bytes == 0 || memory_.Holds(operands[i].data(), bytes),
                 "operand {}, {} bytes, is not in device memory", i, bytes);
    }
    access_.emplace(memory_);
  }
  void Leave(Operands) override { access_.reset(); }

 private:
  GuardedMemory& memory_;
  std::optional<GuardedMemory::Access> access_;
};

}  // namespace

std::unique_ptr<Stream> MakeGuardedStream(GuardedMemory& memory) {
  return std::make_unique<GuardedStream>(memory);
}

std::unique_ptr<Kernels> MakeGuardedKernels(std::unique_ptr<Kernels> kernels,
                                            GuardedMemory& memory) {
  return MakeHookedKernels(MakeGuardedStream(memory), std::move(kernels),
                           std::make_shared<Guard>(memory));
}

}  // namespace dsat::engine
