// Runs fake_trial in place of both binaries that a runner starts.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "db/store.h"
#include "searcher/runner.h"
#include "tests/build_folder.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {

using Script = std::map<std::string, std::vector<std::string>>;  // Trial -> behavior per attempt.
inline const std::string kFake = BuildFolder() + "/fake_trial";

class RunnerTest : public testing::Test {
 protected:
  ExperimentSpec Spec(const Script& script) const {
    ExperimentSpec spec;
    spec.name = "fake";
    spec.method = "random";
    spec.entrypoint = {"builtin"};
    spec.config_path = Path("experiment.yaml");
    spec.model_dir = folder_.path();
    spec.ds_config = {{"train_micro_batch_size_per_gpu", 1},
                      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.001}}}}},
                      {"zero_optimization", {{"stage", 1}}}};
    spec.hyperparameters = {{"model", {{"script", script}, {"journal", Path("journal")}}}};
    spec.max_restarts = 1;
    spec.max_length_steps = 20;
    spec.options.max_trials = 5;
    spec.options.metric = "throughput";
    return spec;
  }

  RunnerOptions Options() const {
    RunnerOptions options;
    options.dsat_binary = options.trial_binary = kFake;
    options.out_dir = Path("out");
    options.num_slots = 1;
    return options;
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  // "+<pid>" and "-<pid>" lines of the trials.
  std::vector<std::string> Journal() const {
    std::ifstream file(Path("journal"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
      lines.push_back(line);
    return lines;
  }

  int64_t NumLaunches() const {
    const std::vector<std::string> lines = Journal();
    return std::count_if(lines.begin(), lines.end(),
                         [](const std::string& line) { return line.starts_with('+'); });
  }

  // No process of any trial is left.
  void ExpectNothingRuns() const {
    for (const std::string& line : Journal()) {
      EXPECT_EQ(kill(std::stoi(line.substr(1)), 0), -1) << "process " << line << " still runs";
    }
  }

  TempFolder folder_;
  Store store_ = Store::Open(Path("dsat.db"), Store::Mode::kCreate);
};

}  // namespace dsat
