// The folder of this test program, which contains all that it runs or loads.
#pragma once

#include <filesystem>
#include <string>

namespace dsat {

// Asked for while the program runs: one compiled test is linked with libraries of several builds.
inline std::string BuildFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

}  // namespace dsat
