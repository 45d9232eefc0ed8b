// Kernels behind the guard: they open the pages, and take device memory only.
#include <optional>
#include <utility>

#include "base/error.h"
#include "tests/engine/backend/guarded_device.h"
#include "tests/engine/backend/operand_kernels.h"

namespace dsat::engine {
namespace {

class GuardedKernels final : public OperandKernels {
 public:
  GuardedKernels(std::unique_ptr<Kernels> inner, GuardedMemory& memory)
      : OperandKernels(std::move(inner)), memory_(memory) {}

  void Upload(void* device, const void* host, int64_t bytes) override {
    CheckSides(device, host, bytes);
    const GuardedMemory::Access access(memory_);
    inner().Upload(device, host, bytes);
  }
  void Download(void* host, const void* device, int64_t bytes) override {
    CheckSides(device, host, bytes);
    const GuardedMemory::Access access(memory_);
    inner().Download(host, device, bytes);
  }

 private:
  void CheckSides(const void* device, const void* host, int64_t bytes) {
    if (bytes == 0) return;
    DSAT_CHECK(memory_.Holds(device, bytes) && !memory_.Holds(host), "{} bytes", bytes);
  }

  void Enter(Operands operands) override {
    for (size_t i = 0; i < operands.size(); ++i) {
      const auto& [data, bytes] = operands[i];
      DSAT_CHECK(bytes == 0 || memory_.Holds(data, bytes),
                 "operand {}, {} bytes, is not in device memory", i, bytes);
    }
    access_.emplace(memory_);
  }
  void Leave(Operands) override { access_.reset(); }

  GuardedMemory& memory_;
  std::optional<GuardedMemory::Access> access_;
};

}  // namespace

std::unique_ptr<Kernels> MakeGuardedKernels(std::unique_ptr<Kernels> kernels,
                                            GuardedMemory& memory) {
  return std::make_unique<GuardedKernels>(std::move(kernels), memory);
}

}  // namespace dsat::engine
