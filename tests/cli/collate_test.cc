// Runs dsat collate on a checkpoint that real ranks have written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::HasSubstr;
using testing::Not;

class CollateCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    work.Write("deepspeed.yaml", std::string(R"(
name: tiny
entrypoint: builtin
resources: {slots_per_trial: 2, device_memory: 6MiB}
searcher: {name: single, max_length: {batches: 2}})") +
                                     kSmallTraining);
    work.Write("ds_config.json", R"({
  "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}
})");
    work.Succeed({"train", "deepspeed.yaml", "--out", "run"});
  }

  Workspace work;
};

// Parameters of that GPT-2: embeddings, 2 blocks, the last layer norm.
constexpr int64_t kNumElems = 256 * 64 + 32 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64;

TEST_F(CollateCommandTest, WritesOneFileAndSaysWhatIsInIt) {
  const Finished text = work.Succeed({"collate", "run/checkpoint", "model.safetensors"});
  EXPECT_EQ(text.err, "");
  EXPECT_THAT(text.out, HasSubstr("model.safetensors: 28 tensors"));
  EXPECT_THAT(text.out, HasSubstr("global_step2"));
  const std::string content = ReadFile(work.Path("model.safetensors"));
  EXPECT_THAT(content.substr(0, 4000), HasSubstr("\"h.1.attn.c_attn.weight\""));

  const Json said = work.DsatJson({"collate", "run/checkpoint", "half.safetensors", "--dtype",
                                   "fp16", "--tag", "global_step2", "--json"});
  const Json expected = {{"out", "half.safetensors"},
                         {"tag", "global_step2"},
                         {"format", "safetensors"},
                         {"dtype", "fp16"},
                         {"tensors", 28},
                         {"elements", kNumElems},
                         {"bytes", std::filesystem::file_size(work.Path("half.safetensors"))}};
  EXPECT_EQ(said, expected);
  EXPECT_GT(std::filesystem::file_size(work.Path("half.safetensors")), 2 * kNumElems);
  EXPECT_LT(std::filesystem::file_size(work.Path("half.safetensors")), 2 * kNumElems + 20'000);
}

TEST_F(CollateCommandTest, RefusesInOneLineAndLeavesNothing) {
  work.Write("mine.safetensors", "mine");
  const std::string rank_file = work.Path("run/checkpoint/global_step2/rank_00001.safetensors");
  work.ExpectRefused({"collate", "run/checkpoint", "mine.safetensors"}, "--force");
  work.ExpectRefused({"collate", "run", "half.safetensors"}, "run/latest: no such file");
  work.ExpectRefused({"collate", "run/checkpoint", "model"}, "ends in .safetensors");
  work.ExpectRefused({"collate", "run/checkpoint", "half.safetensors", "--tag", "../x"},
                     "checkpoint tag \"../x\"");
  work.ExpectRefused({"collate", "run/checkpoint", "half.safetensors", "--dtype", "int8"},
                     "--dtype", 2);
  std::fstream(rank_file, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('\x7f');
  const std::vector<std::string> damaged = {"collate", "run/checkpoint", "half.safetensors"};
  work.ExpectRefused(damaged, "rank_00001");
  EXPECT_THAT(work.Dsat(damaged).err,
              testing::ContainsRegex("rank_00001.*CRC-32 [0-9a-f]{8}.*says [0-9a-f]{8}"));
  work.ExpectRefused({"collate", "run/checkpoint/global_step2", "half.safetensors"},
                     "global_step2: this is one checkpoint; expected " +
                         work.Path("run/checkpoint") + " with --tag global_step2");
  mkfifo(work.Path("pipe.safetensors").c_str(), 0600);
  work.ExpectRefused({"collate", "run/checkpoint", "pipe.safetensors", "--force"},
                     "pipe.safetensors: is not a regular file");
  EXPECT_EQ(ReadFile(work.Path("mine.safetensors")), "mine");
  EXPECT_FALSE(std::filesystem::exists(work.Path("half.safetensors")));
}

TEST_F(CollateCommandTest, ATerminalSeesProgress) {
  const std::string shown =
      work.DsatOnTerminal({"collate", "run/checkpoint", "half.safetensors", "--force"}, 80);
  EXPECT_THAT(shown, HasSubstr("collate: 100 % of "));
  EXPECT_THAT(shown, HasSubstr("\x1b"));
  std::filesystem::remove(work.Path("half.safetensors"));
  // A terminal that cannot clear a line.
  EXPECT_THAT(work.DsatOnTerminal({"collate", "run/checkpoint", "half.safetensors"}, 80, "dumb"),
              Not(HasSubstr("\x1b")));
  EXPECT_TRUE(std::filesystem::exists(work.Path("half.safetensors")));
}

}  // namespace
}  // namespace dsat
