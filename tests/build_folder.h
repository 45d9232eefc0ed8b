// The folder of this test program, which contains all that it runs or loads.
#ifndef DSAT_TESTS_BUILD_FOLDER_H_
#define DSAT_TESTS_BUILD_FOLDER_H_

#include <filesystem>
#include <string>

namespace dsat {

// Asked for while the program runs: one compiled test is linked with libraries of several builds.
inline std::string BuildFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

}  // namespace dsat

#endif  // DSAT_TESTS_BUILD_FOLDER_H_
