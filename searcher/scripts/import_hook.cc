// Finds the Python code.
#include "searcher/scripts/import_hook.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

namespace dsat {

namespace fs = std::filesystem;

std::string PythonFolder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> folders = {program.parent_path() / "python",
                                   program.parent_path().parent_path() / "share/dsat/python",
                                   DSAT_PYTHON_SOURCE};
  if (const char* const given = std::getenv("DSAT_PYTHON_DIR")) folders = {given};
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / "hook/sitecustomize.py", error)) return fs::absolute(folder);
  }
  return "";
}

std::string PythonPath(const std::string& python_folder, const std::string& rest) {
  if (python_folder.empty()) return rest;
  return fmt::format("{0}/hook:{0}{1}{2}", python_folder, rest.empty() ? "" : ":", rest);
}

}  // namespace dsat
