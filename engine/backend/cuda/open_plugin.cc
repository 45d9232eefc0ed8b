// Opens a library of the CUDA backend, and asks it what this machine has.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/cuda/plugin.h"
#include "engine/memory/arena.h"

namespace dsat::engine {
namespace {

// It counts up when plugin.h, or an interface that it names, changes: a library of another build is
// not taken.
constexpr char kCudaPluginSymbol[] = "DsatCudaPlugin3";

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
  PreferredMemory host_memory(plugin.make_host_memory(gpu), "page-locked host memory");
  const auto kernels = plugin.make_kernels(gpu);
  const Arena::Kind kind = Arena::Kind::kReal;
  Arena gpu_arena(fmt::format("memory of GPU {}", gpu), kind, 0, memory.get());
  Arena host_arena("host memory", kind, 0, &host_memory);
  const Buffer from = gpu_arena.Allocate(kBytes, "a measurement");
  const Buffer to = gpu_arena.Allocate(kBytes, "a measurement");
  const Buffer host = host_arena.Allocate(kBytes, "a measurement");
  std::memset(host.data(), 0, kBytes);
  const auto best = [&](double& speed, const std::function<void()>& copy) {
    speed = std::max(speed, static_cast<double>(kBytes) / SecondsOf(copy));
  };
  CudaLink link;
  for (int i = 0; i < kRepeats; ++i) {
    best(link.to_device, [&] { kernels->Upload(from.data(), host.data(), kBytes); });
    best(link.to_host, [&] { kernels->Download(host.data(), from.data(), kBytes); });
    best(link.on_device, [&] {
      kernels->Cast(to.AsTensor(DType::kF32), from.AsTensor(DType::kF32));
      kernels->Download(host.data(), to.data(), sizeof(float));  // Done when this is.
    });
  }
  return link;
}

}  // namespace dsat::engine
