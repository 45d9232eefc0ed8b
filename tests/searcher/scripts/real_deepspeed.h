// Tests that tune scripts with the real DeepSpeed.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "searcher/processes/leftovers.h"
#include "tests/build_folder.h"
#include "tests/cli/run_dsat.h"

namespace dsat {

inline constexpr char kExample[] = DSAT_SOURCE_DIR "/examples/deepspeed/";
inline constexpr char kNoDeepSpeed[] =
    "this Python has no deepspeed; scripts/setup --tests installs one that has it";

class RealDeepSpeedTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("DS_ACCELERATOR", "cpu", 1);
    setenv("OMP_NUM_THREADS", "1", 0);  // The ranks share the cores.
    if (!HasPackage("deepspeed")) GTEST_SKIP() << kNoDeepSpeed;
    // The build folder has DeepSpeed's extensions, which take half a minute to compile.
    const std::string extensions = BuildFolder() + "/torch_extensions";
    setenv("TORCH_EXTENSIONS_DIR", extensions.c_str(), 1);
    RemoveStaleLocks(extensions);
    for (const char* name : {"train.py", "ds_config.json"})
      work_.Write(name, ReadFile(std::string(kExample) + name));
    std::string spec = ReadFile(std::string(kExample) + "deepspeed.yaml");
    const size_t at = spec.find("python3");
    ASSERT_NE(at, std::string::npos);
    work_.Write("deepspeed.yaml", spec.replace(at, 7, Python()));
  }

  // Tunes tests/searcher/scripts/`script` by `command` on `num_ranks` ranks, and returns the
  // trials, which must all succeed.
  Json Tune(const std::string& script, const std::string& command, const std::string& config,
            int num_ranks, int max_trials) {
    work_.Write(script, ReadFile(std::string(DSAT_SOURCE_DIR "/tests/searcher/scripts/") + script));
    work_.Write("ds.json", config);
    work_.Write("tuned.yaml", "name: tuned\nentrypoint: |\n  " + command +
                                  "\nresources: {slots_per_trial: " + std::to_string(num_ranks) +
                                  ", device_memory: 64MiB}\n"
                                  "hyperparameters: {deepspeed_config: ds.json}\n");
    const Finished search = work_.Succeed(
        {"random", "tuned.yaml", "--max-trials", std::to_string(max_trials), "--metric",
         "throughput", "--end-profile-step", "8", "--confirm", "0", "--out", "out"});
    EXPECT_THAT(search.out, testing::HasSubstr("\nnext: sh out/command.txt"));
    const Json trials = Show()["trials"];
    EXPECT_EQ(trials.size(), static_cast<size_t>(max_trials));
    // dsat compares what ran with what was asked for, so that a success has these sizes.
    for (const Json& trial : trials)
      EXPECT_EQ(trial["state"], "succeeded") << trial.dump(2);
    return trials;
  }

  Json Show() const { return Json::parse(work_.Dsat({"show", "1", "--json"}).out); }

  Workspace work_;
};

}  // namespace dsat
