// Checks of the command line and of the machine that a GoogleTest program does not make by itself.
#include "tests/init_tests.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace dsat {
namespace {

constexpr int kSkipped = 77;

// Whether `name` matches `pattern`, in which * stands for any text and ? for any character.
bool Matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    return Matches(pattern.substr(1), name) || (!name.empty() && Matches(pattern, name.substr(1)));
  }
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         Matches(pattern.substr(1), name.substr(1));
}

bool MatchesSomeTest(const std::string& pattern) {
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      if (Matches(pattern, std::string(suite.name()) + "." + suite.GetTestInfo(j)->name()))
        return true;
    }
  }
  return false;
}

// The patterns of `filter` ("A*:B*-C*") that match no test.
std::vector<std::string> DeadPatterns(std::string filter) {
  const size_t negative = filter.find('-');
  if (negative != std::string::npos) filter[negative] = ':';
  std::vector<std::string> dead;
  std::istringstream patterns(filter);
  for (std::string pattern; std::getline(patterns, pattern, ':');)
    if (!pattern.empty() && !MatchesSomeTest(pattern)) dead.push_back(pattern);
  return dead;
}

// Whether the path of executables has a file of this name.
bool IsInPath(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (std::filesystem::exists(std::filesystem::path(folder) / name)) return true;
  return false;
}

// Whether the CUDA driver, if there is one, reports a GPU.
bool DriverHasGpu() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return false;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int num_gpus = 0;
  return init != nullptr && count != nullptr && init(0) == 0 && count(&num_gpus) == 0 &&
         num_gpus > 0;
}

// Any one sign of a GPU is enough, so that a broken driver or build is not taken for no GPU.
bool MachineHasGpu() {
  return std::filesystem::exists("/dev/nvidia0") || IsInPath("nvidia-smi") || DriverHasGpu();
}

}  // namespace

void InitTests(int* argc, char** argv) {
  testing::InitGoogleTest(argc, argv);
  const std::vector<std::string> dead = DeadPatterns(testing::GTEST_FLAG(filter));
  for (const std::string& pattern : dead)
    std::fprintf(stderr, "--gtest_filter: \"%s\" matches no test\n", pattern.c_str());
  if (!dead.empty()) std::exit(1);
  const char* const device = std::getenv("DSAT_TEST_DEVICE");
  if (device != nullptr && std::string_view(device) == "cuda" && !MachineHasGpu()) {
    std::puts("skipped: this machine has no GPU");
    std::exit(kSkipped);
  }
}

}  // namespace dsat
