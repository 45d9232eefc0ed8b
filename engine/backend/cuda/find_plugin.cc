// Finds libdsat-cuda.so.
#include "engine/backend/cuda/plugin.h"

namespace dsat::engine {
namespace {

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

const CudaPlugin& LoadCudaPlugin() {
  static const CudaPlugin& plugin = OpenCudaPlugin(LibraryPath());
  return plugin;
}

}  // namespace dsat::engine
