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

class RoundTripKernels final : public OperandKernels {
 public:
  explicit RoundTripKernels(std::unique_ptr<Device> device)
      : OperandKernels(device->MakeKernels()), device_(std::move(device)) {}

  void Upload(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void Download(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

 private:
  struct Block {
    int64_t bytes = 0;
    void* device = nullptr;
  };
  static int64_t Rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  // Operands at the same place stay at the same place.
  void Enter(Operands operands) override {
    blocks_.clear();
    for (const Operand& operand : operands) {
      if (operand.bytes == 0) continue;
      Block& block = blocks_[operand.data];
      block.bytes = std::max(block.bytes, operand.bytes);
    }
    for (auto& [host, block] : blocks_) {
      block.device = device_->memory().Allocate(Rounded(block.bytes));
      DSAT_CHECK(block.device != nullptr);
      inner().Upload(block.device, host, block.bytes);
    }
    for (const Operand& operand : operands)
      if (operand.bytes > 0) operand.data = blocks_.at(operand.data).device;
  }
  // What has not changed may be constant.
  void Leave(Operands) override {
    for (const auto& [host, block] : blocks_) {
      std::vector<char> after(static_cast<size_t>(block.bytes));
      inner().Download(after.data(), block.device, block.bytes);
      if (std::memcmp(host, after.data(), after.size()) != 0) {
        std::memcpy(host, after.data(), after.size());
      }
      device_->memory().Free(block.device, Rounded(block.bytes));
    }
  }

  std::unique_ptr<Device> device_;
  std::map<void*, Block> blocks_;  // By place on the host.
};

}  // namespace

std::unique_ptr<Kernels> MakeRoundTripKernels(std::unique_ptr<Device> device) {
  return std::make_unique<RoundTripKernels>(std::move(device));
}

}  // namespace dsat::engine
