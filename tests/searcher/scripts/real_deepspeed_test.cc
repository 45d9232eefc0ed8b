// Tunes the example with the real DeepSpeed and the real dsat. Skipped where the Python of
// DSAT_TEST_PYTHON (/usr/bin/python3 if it is not set) cannot import deepspeed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <regex>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

constexpr char kExample[] = DSAT_SOURCE_DIR "/examples/deepspeed/";
constexpr char kNoDeepSpeed[] =
    "this Python has no deepspeed; scripts/setup --tests installs one that has it";

std::string Python() {
  const char* const python = std::getenv("DSAT_TEST_PYTHON");
  return python != nullptr ? python : "/usr/bin/python3";
}

// True if the shell command ends with exit code 0.
bool Succeeds(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class RealDeepSpeedTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("DS_ACCELERATOR", "cpu", 1);
    setenv("OMP_NUM_THREADS", "1", 0);  // The ranks share the cores.
    if (!Succeeds(Python() + " -c 'import deepspeed' >/dev/null 2>&1"))
      GTEST_SKIP() << kNoDeepSpeed;
    for (const char* name : {"train.py", "ds_config.json"})
      work_.Write(name, ReadFile(std::string(kExample) + name));
    std::string spec = ReadFile(std::string(kExample) + "deepspeed.yaml");
    const size_t at = spec.find("python3");
    ASSERT_NE(at, std::string::npos);
    work_.Write("deepspeed.yaml", spec.replace(at, 7, Python()));
  }

  Json Show() const { return Json::parse(work_.Dsat({"show", "1", "--json"}).out); }

  Workspace work_;
};

double ValueOf(const Json& trial, const char* metric) {
  return trial.at("metrics").at(metric).at("value");
}

TEST_F(RealDeepSpeedTest, ASearchMeasuresTrialsAndItsBestConfigTrains) {
  const Finished search =
      work_.Dsat({"random", "deepspeed.yaml", "--max-trials", "4", "--metric", "throughput",
                  "--end-profile-step", "8", "--confirm", "0", "--out", "out"});
  ASSERT_EQ(search.exit_code, 0) << search.err;
  const Json shown = Show();
  EXPECT_EQ(shown["state"], "completed");
  EXPECT_GT(shown["profile"]["num_params"], 400'000);
  ASSERT_EQ(shown["trials"].size(), 4U);
  for (const Json& trial : shown["trials"]) {
    EXPECT_EQ(trial["state"], "succeeded") << trial.dump(2);
    if (trial["id"] == 0) continue;  // It profiles the model and measures no time.
    // Lines of steps 4 to 7: after the profiled step 3, before the one that ends in the hook.
    EXPECT_EQ(trial["metrics"]["latency"]["samples"], 4) << trial.dump(2);
    // Both are medians of four steps, means of the middle two: their product is the batch if all
    // steps take the same time, and more the more the two differ.
    const double samples = ValueOf(trial, "throughput") * ValueOf(trial, "latency") / 1e3;
    const double batch = trial["ds_config"]["train_batch_size"];
    EXPECT_GE(samples, batch - 0.6) << trial.dump(2);
    EXPECT_LE(samples, 5 * batch) << trial.dump(2);
    for (const char* metric : {"FLOPS_per_gpu", "forward", "backward", "step"})
      EXPECT_GT(ValueOf(trial, metric), 0) << metric;
  }

  // The result is an ordinary config: the script trains with it outside dsat.
  EXPECT_FALSE(ReadJsonFile(work_.Path("out/ds_config.json")).contains("autotuning"));
  work_.Write("train.yaml", std::regex_replace(ReadFile(work_.Path("deepspeed.yaml")),
                                               std::regex("train.py"), "train.py --steps 10"));
  const Finished train = work_.Dsat({"train", "train.yaml", "--ds-config", "out/ds_config.json",
                                     "--start-timeout", "1", "--out", "full"});
  EXPECT_EQ(train.exit_code, 0) << train.err;
  EXPECT_THAT(ReadFile(work_.Path("full/rank0.log")), testing::HasSubstr("step 10: loss"));
}

TEST_F(RealDeepSpeedTest, AScriptThatCrashesFailsWithItsLastWords) {
  work_.Write("train.py", "import deepspeed\nraise ValueError('a bug of mine')\n");
  const Finished search = work_.Dsat({"random", "deepspeed.yaml", "--max-trials", "2"});
  EXPECT_NE(search.exit_code, 0);
  EXPECT_THAT(search.out + search.err, testing::HasSubstr("a bug of mine"));
}

}  // namespace
}  // namespace dsat
