// GPUs as devices: the library's kernels and memory, put together.
#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/cuda/nccl_group.h"
#include "engine/backend/cuda/plugin.h"
#include "engine/backend/cuda/watches.h"
#include "engine/backend/device.h"
#include "engine/backend/staged_group.h"
#include "engine/core/device_kind.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaPlugin& plugin, const CudaStatus& status, int gpu, int num_threads)
      : plugin_(plugin),
        gpu_(status.gpus[static_cast<size_t>(gpu)]),
        index_(gpu),
        num_gpus_(static_cast<int>(status.gpus.size())),
        host_(MakeCpuDevice(num_threads)),
        memory_(plugin.make_memory(gpu)),
        host_memory_(plugin.make_host_memory(gpu), "page-locked host memory") {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return fmt::format("cuda:{} ({})", index_, gpu_.name); }
  std::unique_ptr<Kernels> MakeKernels() override { return plugin_.make_kernels(index_, watches_); }
  std::unique_ptr<Kernels> MakeHostKernels() override { return host_->MakeHostKernels(); }
  MemorySource& memory() override { return *memory_; }
  MemorySource& host_memory() override { return host_memory_; }
  int64_t MemoryBytes(int local_world_size) const override {
    const int sharing = (local_world_size + num_gpus_ - 1) / num_gpus_;
    return plugin_.free_bytes(index_) / std::max(1, sharing);
  }
  std::unique_ptr<ProcessGroup> MakeGroup(std::unique_ptr<ProcessGroup> host) override;

 private:
  const CudaPlugin& plugin_;
  CudaGpu gpu_;
  int index_;
  int num_gpus_;
  // The watches of all its streams.
  std::shared_ptr<Watches> watches_ = std::make_shared<Watches>();
  std::unique_ptr<Device> host_;
  std::unique_ptr<MemorySource> memory_;
  PreferredMemory host_memory_;
  bool has_told_ = false;
};

std::unique_ptr<ProcessGroup> CudaDevice::MakeGroup(std::unique_ptr<ProcessGroup> host) {
  NcclDevice device = {.api = {}, .kernels = MakeKernels()};
  if (host->size() == 1) return MakeStagedGroup(std::move(host), *memory_, StreamOf(device));
  const std::string obstacle =
      WhyNoNccl(*host, NcclMachine(), gpu_.address, nccl::Load(device.api));
  if (obstacle.empty()) return MakeNcclGroup(std::move(host), *memory_, device);
  if (host->rank() == 0 && !std::exchange(has_told_, true))
    Log(LogLevel::kWarn, "collectives go through host memory, not NCCL", {{"why", obstacle}});
  return MakeStagedGroup(std::move(host), *memory_, StreamOf(device));
}

}  // namespace

std::unique_ptr<Device> OpenCudaDevice(const CudaPlugin& plugin, int local_rank, int num_threads) {
  const CudaStatus status = plugin.probe();
  if (!status.problem.empty()) Throw(ErrorCode::kUnavailable, "{}", status.problem);
  const int gpu = local_rank % static_cast<int>(status.gpus.size());
  return std::make_unique<CudaDevice>(plugin, status, gpu, num_threads);
}

std::unique_ptr<Device> OpenDevice(const std::string& name, int local_rank, int num_threads) {
  if (name == "cpu") return MakeCpuDevice(num_threads);
  if (name != "cuda" && name != "auto") {
    Throw(ErrorCode::kInvalidArgument, "device is \"{}\"; expected cpu, cuda or auto", name);
  }
  const CudaStatus status = ProbeCuda();
  if (status.problem.empty()) return OpenCudaDevice(LoadCudaPlugin(), local_rank, num_threads);
  if (name == "auto") return MakeCpuDevice(num_threads);
  Throw(ErrorCode::kUnavailable, "device is \"cuda\": {}", status.problem);
}

}  // namespace dsat::engine
