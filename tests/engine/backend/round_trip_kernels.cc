// A device's kernels for host tensors: every call takes its operands to the device and back.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/engine/backend/operand_kernels.h"
#include "tests/engine/backend/test_device.h"

namespace dsat::engine {
namespace {

class RoundTrip final : public OperandHook {
 public:
  RoundTrip(std::unique_ptr<Device> device, std::shared_ptr<Kernels> kernels)
      : device_(std::move(device)), kernels_(std::move(kernels)) {}

  // Operands at the same place stay at the same place.
  void Enter(Operands operands) override {
    blocks_.clear();
    for (const Operand& operand : operands) {
      if (operand.bytes() == 0) continue;
      Block& block = blocks_[operand.data()];
      block.bytes = std::max(block.bytes, operand.bytes());
    }
    for (auto& [host, block] : blocks_) {
      block.device = device_->memory().Allocate(Rounded(block.bytes));
      DSAT_CHECK(block.device != nullptr);
      kernels_->stream().Upload(block.device, host, block.bytes);
    }
    for (const Operand& operand : operands)
      if (operand.bytes() > 0) operand.set_data(blocks_.at(operand.data()).device);
  }
  // Writes only what has changed: the rest may be constant.
  void Leave(Operands) override {
    for (const auto& [host, block] : blocks_) {
      std::vector<char> after(static_cast<size_t>(block.bytes));
      kernels_->stream().Download(after.data(), block.device, block.bytes);
      if (std::memcmp(host, after.data(), after.size()) != 0) {
        std::memcpy(host, after.data(), after.size());
      }
      device_->memory().Free(block.device, Rounded(block.bytes));
    }
  }

 private:
  struct Block {
    int64_t bytes = 0;
    void* device = nullptr;
  };
  static int64_t Rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  const std::unique_ptr<Device> device_;
  const std::shared_ptr<Kernels> kernels_;
  std::map<void*, Block> blocks_;  // By place on the host.
};

}  // namespace

std::unique_ptr<Kernels> MakeRoundTripKernels(std::unique_ptr<Device> device) {
  const std::shared_ptr<Kernels> kernels = device->MakeKernels();
  return MakeHookedKernels(MakeCpuStream(1), kernels,
                           std::make_shared<RoundTrip>(std::move(device), kernels));
}

}  // namespace dsat::engine
