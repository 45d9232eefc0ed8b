// Tests the experiment files of commands.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "searcher/input/experiment_file.h"
#include "tests/base/error_code.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class CommandFileTest : public ::testing::Test {
 protected:
  CommandFileTest() {
    WriteFileAtomic(folder_ / "ds.json", R"({"train_micro_batch_size_per_gpu": 2})");
    WriteFileAtomic(folder_ / "other.json", R"({"hidden_size": 2})");
    WriteFileAtomic(folder_ / "lines.json", "{\"x\": 1}\n{\"x\": 2}\n");
    WriteFileAtomic(folder_ / "acc.yaml", "deepspeed_config:\n  deepspeed_config_file: ds.json\n");
    WriteFileAtomic(folder_ / "two.yaml", "num_processes: 2\ndeepspeed_config_file: ds.json\n");
    WriteFileAtomic(folder_ / "args.json", R"({"lr": 1, "deepspeed": "ds.json"})");
    WriteFileAtomic(folder_ / "names.py", "Args(data='lines.json', deepspeed=\"ds.json\")");
    WriteFileAtomic(folder_ / "train.py", "");
  }
  TypedCommand Typed(const Words& words) const {
    return {words, folder_.path(), [this] { return num_gpus_; }};
  }
  ExperimentSpec SpecOf(const Words& command) {
    std::vector<std::string> warnings;
    return ReadExperimentFile(WriteExperimentFile(Typed(command)), folder_.path(), &warnings);
  }
  std::string RefusalOf(const Words& command) {
    return dsat::RefusalOf([&] { ExperimentFileOf(Typed(command)); });
  }

  TempFolder folder_;
  int64_t num_gpus_ = 0;
};

TEST_F(CommandFileTest, TheCommandShowsItsRanksAndItsConfig) {
  struct Case {
    Words command;
    int64_t slots;
  };
  const std::vector<Case> cases = {
      {{"deepspeed", "--num_gpus", "4", "train.py", "--deepspeed", "ds.json"}, 4},
      {{"deepspeed", "--num_gpus=2", "--num_nodes", "3", "train.py", "--ds_config=ds.json"}, 6},
      {{"torchrun", "--nproc-per-node", "3", "a/train.py", "--deepspeed_config", "ds.json"}, 3},
      {{"accelerate", "launch", "--num_processes", "2", "--config_file", "acc.yaml", "train.py"},
       2},
      {{"python3", "train.py", "--deepspeed", "ds.json", "--text", "a: \"b\" # c"}, 1},
      {{"python3", "train.py", "--trainer.strategy.config", "ds.json"}, 1},
      {{"python3", "train.py", "--model=other.json", "--config=ds.json"}, 1},
      {{"accelerate", "launch", "--config_file", "two.yaml", "train.py"}, 2},
      {{"torchrun", "--nproc_per_node", "3", "train.py", "args.json"}, 3},
      {{"sh", "-c", "torchrun --nproc_per_node 5 train.py --deepspeed ds.json"}, 5},
  };
  for (const Case& c : cases) {
    const ExperimentSpec spec = SpecOf(c.command);
    EXPECT_EQ(spec.slots_per_trial, c.slots) << c.command[0];
    EXPECT_EQ(spec.name, "train");
    EXPECT_EQ(spec.ds_config.at("train_micro_batch_size_per_gpu"), 2);
    EXPECT_EQ(spec.model_dir, folder_.path());
  }
  EXPECT_THAT(SpecOf(cases[4].command).entrypoint, testing::Contains("a: \"b\" # c"));
  EXPECT_EQ(SpecOf({"python3", "names.py"}).ds_config.at("train_micro_batch_size_per_gpu"), 2);
}

TEST_F(CommandFileTest, WhatTheCommandDoesNotShowIsAskedForByName) {
  for (const Words& none : {Words{"python3", "train.py"},
                            {"python3", "train.py", "--model", "other.json"},
                            {"python3", "train.py", "--data=lines.json"}})
    EXPECT_THAT(RefusalOf(none), HasSubstr("or write an experiment file"));
  EXPECT_THAT(RefusalOf({"python3", "train.py", "--per_device_train_batch_size", "2"}),
              HasSubstr("and add --deepspeed ds_config.json"));
  EXPECT_THAT(RefusalOf({"python3", "train.py", "--config", "none.json"}),
              HasSubstr("(none.json: no such file)"));
  EXPECT_THAT(RefusalOf({"torchrun", "train.py", "--deepspeed", "ds.json"}),
              HasSubstr("add --nproc_per_node N"));
  const Words all = {"deepspeed", "train.py", "--deepspeed", "ds.json"};
  EXPECT_THAT(RefusalOf(all), HasSubstr("add --num_gpus N"));
  num_gpus_ = 8;
  EXPECT_EQ(SpecOf(all).slots_per_trial, 8);
}

TEST_F(CommandFileTest, AnotherCommandGetsAnotherFileAndTheSameOneItsOwn) {
  const Words first = {"python3", "train.py", "--deepspeed", "ds.json"};
  Words second = first;
  second.emplace_back("--long");
  const std::string path = WriteExperimentFile(Typed(first));
  EXPECT_EQ(path, folder_ / "dsat-out/commands/train.yaml");
  EXPECT_EQ(WriteExperimentFile(Typed(second)), folder_ / "dsat-out/commands/train-2.yaml");
  EXPECT_EQ(WriteExperimentFile(Typed(first)), path);
}

}  // namespace
}  // namespace dsat
