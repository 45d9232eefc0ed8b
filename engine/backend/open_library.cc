// Looks for NVIDIA's libraries in the loader's folders and in those of Python packages.
#include "engine/backend/open_library.h"

#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <vector>

#include "base/files.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Where Python is installed: the virtual environment, and what its python3 links to.
std::vector<fs::path> PythonPrefixes() {
  const fs::path python = FindProgram("python3");
  if (python.empty()) return {};
  std::vector<fs::path> prefixes = {python.parent_path().parent_path()};
  std::error_code error;
  const fs::path resolved = fs::canonical(python, error).parent_path().parent_path();
  if (!error && resolved != prefixes[0]) prefixes.push_back(resolved);
  if (prefixes.back() == "/usr") prefixes.emplace_back("/usr/local");
  const std::string home = Variable("HOME");
  if (!home.empty()) prefixes.push_back(fs::path(home) / ".local");
  return prefixes;
}

std::vector<std::string> Matching(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

// The places outside the loader's own search where a library of this name may be.
std::vector<std::string> PathsOf(const std::string& name) {
  std::vector<std::string> paths;
  std::istringstream folders(Variable("DSAT_CUDA_LIBRARIES"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty()) paths.push_back(folder + "/" + name);
  for (const fs::path& prefix : PythonPrefixes()) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const std::string& path :
           Matching((prefix / "lib/python3*" / packages / "nvidia/*/lib" / name).string()))
        paths.push_back(path);
    }
  }
  return paths;
}

}  // namespace

OpenedLibrary OpenLibrary(const std::string& name) {
  OpenedLibrary library;
  const auto open = [&](const std::string& path) {
    library.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return library.handle != nullptr;
  };
  if (!open(name)) {
    const std::string reason = dlerror();
    if (std::ranges::none_of(PathsOf(name), open)) {
      library.problem =
          reason + "; nor is it in DSAT_CUDA_LIBRARIES or nvidia/*/lib beside python3's packages";
      return library;
    }
  }
  const link_map* map = nullptr;
  library.path = dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : name;
  return library;
}

}  // namespace dsat::engine
