// Runs the examples of docs/engine.md exactly as they are written there.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files.h"
#include "tests/build_folder.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

// The fenced blocks of a language in docs/engine.md, in order.
std::vector<std::string> BlocksOf(const std::string& language) {
  const std::string docs = ReadFile(DSAT_SOURCE_DIR "/docs/engine.md");
  const std::string fence = "\n```" + language + "\n";
  std::vector<std::string> blocks;
  for (size_t at = docs.find(fence); at != docs.npos; at = docs.find(fence, at)) {
    at += fence.size();
    const size_t end = docs.find("\n```", at);
    blocks.push_back(docs.substr(at, end + 1 - at));
  }
  return blocks;
}

// Runs the commands with dsat on the path, up to the first that fails.
int RunCommands(const Workspace& work, const std::string& commands) {
  work.Write("commands.sh", commands);
  return std::system(fmt::format("cd {} && PATH={}:$PATH bash -e commands.sh > shown.txt 2>&1",
                                 work.Path(""), BuildFolder())
                         .c_str());
}

TEST(EngineDocsTest, TheExamplesRunAsTheyAreWritten) {
  const Workspace work;
  const std::vector<std::string> commands = BlocksOf("sh");
  ASSERT_EQ(commands.size(), 1u);
  ASSERT_EQ(RunCommands(work, commands[0]), 0) << ReadFile(work.Path("shown.txt"));
  const std::string shown = ReadFile(work.Path("shown.txt"));
  for (const char* seen : {"validation loss", "continuing from", "step     40/40  loss",
                           "The license", "model.safetensors: 28 tensors", "stage_3_nvme"})
    EXPECT_THAT(shown, testing::HasSubstr(seen));

  const std::vector<std::string> configs = BlocksOf("json");
  EXPECT_GE(configs.size(), 6u);
  for (size_t i = 0; i < configs.size(); ++i) {
    work.Write("ds_config.json", configs[i]);
    const Finished train =
        work.Succeed({"train", "gpt.yaml", "--steps", "4", "--out", fmt::format("run-{}", i)});
    EXPECT_THAT(train.out, testing::HasSubstr("step      4/4  loss")) << configs[i];
    EXPECT_THAT(train.err, testing::Not(testing::ContainsRegex("(^|\n)W "))) << configs[i];
  }
}

// Provokes the messages that the docs show after the examples.
TEST(EngineDocsTest, TheRefusalsAreAsTheyAreWritten) {
  const Workspace work;
  const std::vector<std::string> commands = BlocksOf("sh");
  ASSERT_EQ(RunCommands(work, commands.at(0).substr(0, commands.at(0).find("\ndsat "))), 0);
  const std::string docs = ReadFile(DSAT_SOURCE_DIR "/docs/engine.md");
  const size_t first = docs.find("\nds_config.json: /");
  int num_told = 0;
  for (size_t at = first; at != docs.npos && at < docs.find("\n```", first); ++num_told)
    at = docs.find("\nds_config.json: /", at + 1);
  const std::vector<const char*> configs = {
      R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 3,
          "gradient_accumulation_steps": 2})",
      R"({"train_batch_size": 4,
          "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}})",
      R"({"train_batch_size": 4, "zero_optimization": {"stage": 2}, "pipeline": {"stages": 2}})",
      R"({"train_batch_size": 4,
            "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})"};
  EXPECT_EQ(num_told, std::ssize(configs));
  for (const char* config : configs) {
    work.Write("ds_config.json", config);
    const Finished train = work.Dsat({"train", "gpt.yaml", "--steps", "1"});
    EXPECT_NE(train.exit_code, 0);
    const std::string message = train.err.substr(train.err.find("ds_config.json: "));
    EXPECT_THAT(docs, testing::HasSubstr("\n" + message)) << train.err;
  }
}

}  // namespace
}  // namespace dsat
