// Runs dsat generate as a user who ends it in the middle.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/files.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

// Waits until the file is empty, or not there, or neither.
bool WaitUntilEmpty(const std::string& path, bool empty) {
  for (int i = 0; i < 1000; ++i) {
    if (ReadOrEmpty(path).empty() == empty) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(InferenceTest, NothingSurvivesACommandThatIsKilled) {
  const Workspace work;
  work.Write("deepspeed.yaml", std::string("entrypoint: builtin") + kSmallTraining);
  work.Write("ds_config.json", R"({"train_batch_size": 2, "optimizer": {"type": "SGD"}})");
  const Finished trained = work.Dsat({"train", "deepspeed.yaml", "--steps", "1"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;

  const pid_t dsat = work.StartDsat(
      {"generate", "deepspeed.yaml", "--prompt", "The ", "--max-new-tokens", "100000000"}, "text");
  const std::string children = fmt::format("/proc/{}/task/{}/children", dsat, dsat);
  ASSERT_TRUE(WaitUntilEmpty(children, false));
  const std::string child = Trimmed(ReadFile(children));
  kill(dsat, SIGKILL);
  EXPECT_EQ(WaitFor(dsat), 128 + SIGKILL);
  EXPECT_TRUE(WaitUntilEmpty("/proc/" + child + "/cmdline", true));  // Of a zombie it is empty.
}

}  // namespace
}  // namespace dsat
