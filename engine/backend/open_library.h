// Libraries that are opened when they are first used, wherever a machine has them.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace dsat::engine {

struct OpenedLibrary {
  void* handle = nullptr;  // nullptr: not found. It is never closed.
  std::string path;
  // Why it was not found: the loader's reason, and where else was looked; or what it lacks.
  std::string problem;

  // Sets `function` to the library's function of this name, or to nullptr if there is none; then
  // `problem`, if it is empty, says so. REQUIRES: it was found.
  template <typename Function>
  void Find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr && problem.empty()) problem = fmt::format("{} has no {}", path, name);
  }
};

// The names of those that several places look for.
inline constexpr char kNcclLibrary[] = "libnccl.so.2";

// Opens `name` where the loader finds it, else in the folders of the environment
// variable DSAT_CUDA_LIBRARIES (separated by colons), else where pip installs NVIDIA's packages for
// the python3 in PATH: nvidia/*/lib in its site-packages.
OpenedLibrary OpenLibrary(const std::string& name);

}  // namespace dsat::engine
