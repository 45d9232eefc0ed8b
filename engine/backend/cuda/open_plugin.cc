// Opens a library of the CUDA backend, and asks it what this machine has.
#include <dlfcn.h>

#include "base/error.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/cuda/plugin.h"
#include "engine/backend/cuda/watches.h"
#include "engine/core/arena.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {
namespace {

// It counts up when plugin.h, or an interface that it names, changes: a library of another build is
// not taken.
constexpr char kCudaPluginSymbol[] = "DsatCudaPlugin8";

constexpr char kCudaLibrary[] = "libdsat-cuda.so";

// Beside the program in a build, in the lib folder of an installation, or wherever the loader
// looks.
std::filesystem::path LibraryPath() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const std::filesystem::path& folder : {program, program.parent_path() / "lib"})
    if (std::filesystem::exists(folder / kCudaLibrary)) return folder / kCudaLibrary;
  return kCudaLibrary;
}

}  // namespace

const CudaPlugin& OpenCudaPlugin(const std::filesystem::path& library) {
  void* opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string name = library.filename();
  if (opened == nullptr) {
    Throw(ErrorCode::kUnavailable,
          "{}; expected {} beside the program, where a whole build puts it (cmake --build, with "
          "nvcc in PATH; docs/gpu.md)",
          dlerror(), name);
  }
  const auto plugin = reinterpret_cast<const CudaPlugin* (*)()>(dlsym(opened, kCudaPluginSymbol));
  if (plugin == nullptr)
    Throw(ErrorCode::kUnavailable, "{} is of another build of dsat; expected its own", name);
  return *plugin();
}

const CudaPlugin& LoadCudaPlugin() {
  static const std::filesystem::path library = LibraryPath();
  if (!DSAT_WITH_CUDA && library == kCudaLibrary) {  // Another build may have made one.
    Throw(ErrorCode::kUnavailable,
          "dsat was built without CUDA; build it with the CUDA toolkit (cmake -DDSAT_CUDA=ON), or "
          "use device cpu");
  }
  static const CudaPlugin* const plugin = &OpenCudaPlugin(library);
  return *plugin;
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

int64_t FreeCudaMemory(int gpu) {
  return LoadCudaPlugin().free_bytes(gpu);
}

DeviceSpeed MeasureCudaSpeed(int gpu) {
  const CudaPlugin& plugin = LoadCudaPlugin();
  const auto memory = plugin.make_memory(gpu);
  PreferredMemory host_memory(plugin.make_host_memory(gpu), "page-locked host memory");
  const auto kernels = plugin.make_kernels(gpu, std::make_shared<Watches>());
  const Arena::Kind kind = Arena::Kind::kReal;
  Arena gpu_arena(fmt::format("memory of GPU {}", gpu), kind, 0, memory.get());
  Arena host_arena("host memory", kind, 0, &host_memory);
  return MeasureDeviceSpeed(*kernels, gpu_arena, host_arena, DType::kBF16);
}

}  // namespace dsat::engine
