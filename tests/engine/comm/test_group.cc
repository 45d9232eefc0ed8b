// The process groups that the contract suites run over.
#include "tests/engine/comm/test_group.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/backend/cuda/nccl_group.h"
#include "tests/build_folder.h"

namespace dsat::engine {
namespace {

std::unique_ptr<ProcessGroup> CopyOf(ProcessGroup& group) {
  return group.Split(std::vector<int>(static_cast<size_t>(group.size()), 0));
}

}  // namespace

NcclDevice HostNccl() {
  NcclDevice device = {.api = {}, .kernels = MakeCpuKernels(1)};
  const std::string problem = nccl::Load(device.api, (BuildFolder() + "/libfake_nccl.so").c_str());
  DSAT_CHECK(problem.empty(), "{}", problem);
  return device;
}

void RunGroups(int size, const std::function<void(ProcessGroup& group)>& fn) {
  const char* kind = std::getenv("DSAT_TEST_GROUP");
  if (kind == nullptr || std::string(kind) == "tcp" || size == 1) return RunRanks(size, fn);
  DSAT_CHECK(std::string(kind) == "nccl", "{}", kind);
  RunRanks(size, [&](ProcessGroup& host) {
    SystemMemory memory;
    fn(*MakeNcclGroup(CopyOf(host), memory, HostNccl()));
  });
}

void RunTwoProcesses(const std::function<void(ProcessGroup& group)>& fn) {
  const UniqueFd file = MakeMemoryFile();
  const auto run = [&](int rank) { fn(*MakeShmGroup(file.get(), rank, 2, kTestTimeout)); };
  const pid_t child = fork();
  if (child == 0) {
    run(1);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  run(0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace dsat::engine
