// The functions of libdsat-cuda.so: which GPUs there are, their memory, their kernels.
#include "engine/backend/cuda/plugin.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "engine/backend/cost.h"
#include "engine/backend/cuda/cublaslt.h"
#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/cuda_kernels.h"

namespace dsat::engine {
namespace {

class CudaMemory final : public MemorySource {
 public:
  explicit CudaMemory(int gpu) : gpu_(gpu) {}

  void* Allocate(int64_t bytes) override {
    CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
    return TryAllocateOnGpu(static_cast<size_t>(bytes));
  }
  // Whatever it reports, the block is gone.
  void Free(void* block, int64_t) override {
    cudaSetDevice(gpu_);
    cudaFree(block);
  }
  bool host_visible() const override { return false; }
  int64_t granule_bytes() const override { return kCudaGranuleBytes; }
  bool Holds(const void* data) override {
    cudaPointerAttributes attributes{};
    CheckCuda(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
    return attributes.type == cudaMemoryTypeDevice;
  }
  bool PinHost(void* data, int64_t bytes) override {
    CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
    const auto size = static_cast<size_t>(bytes);
    const bool locked = cudaHostRegister(data, size, cudaHostRegisterDefault) == cudaSuccess;
    if (!locked) cudaGetLastError();
    return locked;
  }
  void UnpinHost(void* data) override {
    cudaSetDevice(gpu_);
    cudaHostUnregister(data);
  }

 private:
  int gpu_;
};

class LockedHostMemory final : public MemorySource {
 public:
  explicit LockedHostMemory(int gpu) : gpu_(gpu) {}

  void* Allocate(int64_t bytes) override {
    CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
    void* block = nullptr;
    if (cudaMallocHost(&block, static_cast<size_t>(bytes)) == cudaSuccess) return block;
    cudaGetLastError();
    return nullptr;
  }
  void Free(void* block, int64_t) override {
    cudaSetDevice(gpu_);
    cudaFreeHost(block);
  }
  bool host_visible() const override { return true; }
  bool Holds(const void*) override { return true; }

 private:
  int gpu_;
};

CudaGpu Describe(int gpu) {
  cudaDeviceProp properties{};
  CheckCuda(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  return {.name = properties.name,
          .address = fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID,
                                 properties.pciBusID, properties.pciDeviceID),
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .capability = 10 * properties.major + properties.minor,
          .num_multiprocessors = properties.multiProcessorCount};
}

int64_t FreeBytes(int gpu) {
  CheckCuda(cudaSetDevice(gpu), "cudaSetDevice");
  size_t free_bytes = 0, total_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return static_cast<int64_t>(free_bytes);
}

// Says what to do about an error of the first call that needs a driver.
std::string ProblemOf(cudaError_t error, int driver_version) {
  if (driver_version == 0) {
    return "this machine has no NVIDIA driver (libcuda.so.1); install one, or use device cpu";
  }
  if (error == cudaErrorInsufficientDriver) {
    return fmt::format(
        "the NVIDIA driver is too old: it runs CUDA {}.{}, dsat was built with {}.{}; install a "
        "newer driver, or use device cpu",
        driver_version / 1000, driver_version % 1000 / 10, CUDART_VERSION / 1000,
        CUDART_VERSION % 1000 / 10);
  }
  return fmt::format("the NVIDIA driver shows no GPU: {}; use device cpu",
                     cudaGetErrorString(error));
}

CudaStatus Probe() {
  CudaStatus status;
  status.toolkit_version = CUDART_VERSION;
  // Without a driver it is 0, and no error.
  if (cudaDriverGetVersion(&status.driver_version) != cudaSuccess) status.driver_version = 0;
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error != cudaSuccess) {
    cudaGetLastError();
    status.problem = ProblemOf(error, status.driver_version);
    return status;
  }
  for (int gpu = 0; gpu < count; ++gpu)
    status.gpus.push_back(Describe(gpu));
  constexpr int kLeastCapability = 80;
  for (const CudaGpu& gpu : status.gpus) {
    if (gpu.capability >= kLeastCapability) continue;
    status.problem = fmt::format("{} is of compute capability {}.{}; expected 8.0 or newer{}",
                                 gpu.name, gpu.capability / 10, gpu.capability % 10,
                                 count == 1 ? "" : ", or only the others in CUDA_VISIBLE_DEVICES");
  }
  if (status.problem.empty()) {
    cublaslt::Api cublas;
    status.problem = cublaslt::Load(cublas);
    status.cublas_path = cublas.path;
  }
  return status;
}

std::unique_ptr<Kernels> MakeKernels(int gpu, std::shared_ptr<Watches> watches) {
  auto stream = std::make_unique<CudaStream>(gpu, std::move(watches));
  auto kernels = MakeCudaKernels(gpu, *stream);
  return std::make_unique<Kernels>(std::move(stream), std::move(kernels));
}

template <typename Memory>
std::unique_ptr<MemorySource> MakeMemory(int gpu) {
  return std::make_unique<Memory>(gpu);
}

constexpr CudaPlugin kPlugin = {.probe = Probe,
                                .free_bytes = FreeBytes,
                                .make_kernels = MakeKernels,
                                .make_memory = MakeMemory<CudaMemory>,
                                .make_host_memory = MakeMemory<LockedHostMemory>};

}  // namespace
}  // namespace dsat::engine

extern "C" const dsat::engine::CudaPlugin* DsatCudaPlugin8() {
  return &dsat::engine::kPlugin;
}
