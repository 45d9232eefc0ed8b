// Opens a library of the CUDA backend, and asks it what this machine has.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "base/error.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/cuda/plugin.h"

namespace dsat::engine {
namespace {

// It counts up when plugin.h, or an interface that it names, changes: a library of another build is
// not taken.
constexpr char kCudaPluginSymbol[] = "DsatCudaPlugin1";

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

const CudaPlugin& OpenCudaPlugin(const std::filesystem::path& library) {
  void* opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string name = library.filename();
  if (opened == nullptr) {
    Throw(ErrorCode::kUnavailable, "{}; expected {} beside the program", dlerror(), name);
  }
  const auto plugin = reinterpret_cast<const CudaPlugin* (*)()>(dlsym(opened, kCudaPluginSymbol));
  if (plugin == nullptr)
    Throw(ErrorCode::kUnavailable, "{} is of another build of dsat; expected its own", name);
  return *plugin();
}

CudaStatus ProbeCuda() {
  try {
    return LoadCudaPlugin().probe();
  } catch (const Error& error) {
    CudaStatus status;
    status.problem = error.what();
    return status;
  }
}

CudaLink MeasureCudaLink(int gpu) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  constexpr int kRepeats = 5;
  const CudaPlugin& plugin = LoadCudaPlugin();
  const auto memory = plugin.make_memory(gpu);
  const auto kernels = plugin.make_kernels(gpu);
  void* block = memory->Allocate(kBytes);
  if (block == nullptr) Throw(ErrorCode::kUnavailable, "GPU {}: no {} bytes free", gpu, kBytes);
  std::vector<char> host(static_cast<size_t>(kBytes), 1);
  CudaLink link;
  for (int i = 0; i < kRepeats; ++i) {
    const double up = SecondsOf([&] { kernels->Upload(block, host.data(), kBytes); });
    const double down = SecondsOf([&] { kernels->Download(host.data(), block, kBytes); });
    link.to_device = std::max(link.to_device, static_cast<double>(kBytes) / up);
    link.to_host = std::max(link.to_host, static_cast<double>(kBytes) / down);
  }
  memory->Free(block, kBytes);
  return link;
}

}  // namespace dsat::engine
