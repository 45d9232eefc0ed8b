// Runs dsat generate as a user who ends it in the middle, and dsat train on folders with defects.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "base/unique_fd.h"
#include "tests/base/file_size_limit.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::HasSubstr;
using testing::Not;

class InferenceTest : public testing::Test {
 protected:
  InferenceTest() {
    work.Write("deepspeed.yaml", std::string("entrypoint: builtin") + kSmallTraining);
    work.Write("ds_config.json", R"({"train_batch_size": 2, "optimizer": {"type": "SGD"}})");
  }
  // Leaves a checkpoint where dsat generate looks for one.
  void TrainOneStep() const { work.Succeed({"train", "deepspeed.yaml", "--steps", "1"}); }

  const Workspace work;
};
using TrainingStartTest = InferenceTest;

TEST_F(InferenceTest, TextThatCannotBeWrittenIsAnErrorUnlessItsReaderHasGone) {
  TrainOneStep();
  for (const char* format : {"", "--json"}) {
    std::vector<std::string> argv = {"generate", "deepspeed.yaml",   "--prompt",
                                     "The ",     "--max-new-tokens", "3"};
    if (*format != '\0') argv.emplace_back(format);
    const std::string name = fmt::format("full{}", format);
    std::filesystem::create_symlink("/dev/full", work.Path(name + ".out"));
    EXPECT_EQ(WaitFor(work.StartDsat(argv, name)), 1);
    EXPECT_THAT(ReadFile(work.Path(name + ".err")), HasSubstr("No space left"));
  }
  // Opened, so that the program can open it for writing, and closed before it writes.
  ASSERT_EQ(mkfifo(work.Path("gone.out").c_str(), 0600), 0);
  UniqueFd reader(open(work.Path("gone.out").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const pid_t dsat = work.StartDsat(
      {"generate", "deepspeed.yaml", "--prompt", "The ", "--max-new-tokens", "100000000"}, "gone");
  pollfd written{reader.get(), POLLIN, 0};
  ASSERT_EQ(poll(&written, 1, 60'000), 1);
  reader.Reset();
  EXPECT_EQ(WaitFor(dsat), 128 + SIGPIPE);
  EXPECT_EQ(ReadFile(work.Path("gone.err")), "");
}

TEST_F(InferenceTest, ATaskThatCannotBeWrittenIsAnError) {
  TrainOneStep();
  const FileSizeLimit limit(512);
  const Finished run = work.Dsat({"generate", "deepspeed.yaml", "--prompt", "The "});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.err, "dsat: memory for the task: File too large\n");
}

TEST_F(InferenceTest, TheEnvironmentOfTheExperimentFileHolds) {
  TrainOneStep();
  std::string training = kSmallTraining;
  training.insert(training.rfind('}'), ", validation: {split: 0.05}");
  work.Write("deepspeed.yaml",
             "environment: {environment_variables: [LD_PRELOAD=/none.so]}\nentrypoint: builtin" +
                 training);
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"eval", "deepspeed.yaml"},
           {"generate", "deepspeed.yaml", "--prompt", "The ", "--max-new-tokens", "1"}})
    EXPECT_THAT(work.Dsat(args).err, HasSubstr("/none.so")) << args[0];
}

TEST_F(TrainingStartTest, WithoutTheFileLatestTheCommandKnowsWhatTheRanksContinueFrom) {
  const auto train = [&](int train_batch_size, std::vector<std::string> more) {
    work.Write("ds_config.json",
               fmt::format(R"({{"train_batch_size": {}, "optimizer": {{"type": "SGD"}}}})",
                           train_batch_size));
    more.insert(more.begin(), {"train", "deepspeed.yaml", "--out", "out", "--steps"});
    return work.Succeed(more);
  };
  const std::string checkpoint = work.Path("out/checkpoint/global_step");
  train(2, {"2"});
  std::filesystem::remove(work.Path("out/checkpoint/latest"));
  const Json done = Json::parse(train(2, {"2", "--json"}).out);
  EXPECT_EQ(done.at("checkpoint"), checkpoint + "2");
  const std::string said = train(4, {"3"}).err;
  EXPECT_THAT(said, HasSubstr("continuing from " + checkpoint + "2;"));
  EXPECT_THAT(said, HasSubstr("train_batch_size was 2 and is 4"));
}

TEST_F(TrainingStartTest, ADamagedCheckpointIsNamedAndTheOneBeforeItContinues) {
  const std::vector<std::string> train = {"train", "deepspeed.yaml",        "--json", "--keep",
                                          "2",     "--checkpoint-interval", "2",      "--steps"};
  work.Succeed(Joined(train, {"4"}));
  const std::string dir = work.Path("dsat-out/train/deepspeed/checkpoint/");
  std::filesystem::resize_file(dir + "global_step4/rank_00000.safetensors", 100);
  const Finished trained = work.Succeed(Joined(train, {"5"}));
  EXPECT_THAT(trained.err, HasSubstr("left out as not good: " + dir +
                                     "global_step4/rank_00000.safetensors: 100 bytes, "));
  EXPECT_THAT(trained.err, HasSubstr(": continuing from " + dir + "global_step2\n"));
  EXPECT_EQ(CountLines(ReadFile(work.Path("dsat-out/train/deepspeed/metrics.jsonl"))), 5);
  for (const char* tag : {"global_step4", "global_step5"})
    std::filesystem::resize_file(dir + tag + "/manifest.json", 10);
  work.Fail(Joined(train, {"6"}), "move this folder away to train from the beginning");
}

TEST_F(TrainingStartTest, AnotherTrainingDoesNotContinueACheckpointUnnoticed) {
  std::string training = kSmallTraining;
  const auto write = [&](const std::string& was, const std::string& is, const std::string& lr) {
    const size_t at = training.find(was);
    ASSERT_NE(at, std::string::npos);
    work.Write("deepspeed.yaml",
               "entrypoint: builtin" + std::string(training).replace(at, was.size(), is));
    work.Write("ds_config.json",
               fmt::format(R"({{"train_batch_size": 2, "optimizer": {{"type": "AdamW",
                           "params": {{"lr": {}}}}}}})",
                           lr));
  };
  write("n_head: 2", "n_head: 2", "0.001");
  TrainOneStep();
  const std::vector<std::string> train = {"train", "deepspeed.yaml", "--steps", "2"};
  const std::string folder = work.Path("dsat-out/train/deepspeed/checkpoint/global_step1");
  for (const auto& [was, is, what] : std::vector<std::array<std::string, 3>>{
           {"n_head: 2", "n_head: 4", "/model/n_head was 2 and is 4"},
           {"seq_len: 32", "seq_len: 16", "/data/seq_len was 32 and is 16"},
           {"common-licenses", "common-licenses/GPL-2",
            "/data/path was \"/usr/share/common-licenses\" and is "
            "\"/usr/share/common-licenses/GPL-2\""}}) {
    write(was, is, "0.001");
    const Finished refused = work.Fail(train, folder + " is of another training: " + what);
    EXPECT_THAT(refused.err, HasSubstr("set this back, or train into another folder"));
  }
  write("n_head: 2", "n_head: 2", "0.5");
  EXPECT_THAT(work.Succeed(train).err,
              HasSubstr("changed from now on: /optimizer/params/lr was 0.001 and is 0.5\n"));
  std::filesystem::copy_file(work.Path("deepspeed.yaml"), work.Path("other.yaml"));
  EXPECT_THAT(work.Dsat({"train", "other.yaml", "--steps", "1"}).err, Not(HasSubstr("continuing")));
  EXPECT_THAT(
      work.Dsat({"generate", "other.yaml", "--prompt", "The ", "--tag", "global_step2"}).err,
      HasSubstr("dsat-out/train/other/checkpoint/global_step2"));
}

TEST_F(TrainingStartTest, FilesOfOthersAreNotReplaced) {
  TrainOneStep();
  const auto expect_refused = [&](const std::string& option, const std::string& value,
                                  const std::string& file) {
    work.Write(file, "{\"mine\": 1}");
    work.Fail({"train", "deepspeed.yaml", option, value},
              option + ": " + work.Path(file) + " is a file, and not ");
    EXPECT_EQ(ReadFile(work.Path(file)), "{\"mine\": 1}");
  };
  expect_refused("--trace", "dsat.db", "dsat.db");
  expect_refused("--out", "out", "out/task.json");
}

TEST_F(TrainingStartTest, AScriptHasNoResultsOfATrainingThatWasInItsFolder) {
  TrainOneStep();
  work.Write("script.yaml",
             "entrypoint: python3 train.py --deepspeed_config ds_config.json\n"
             "hyperparameters: {deepspeed_config: ds_config.json}\n");
  work.Write("train.py", "");
  const Finished trained = work.Succeed({"train", "script.yaml", "--json"});
  EXPECT_TRUE(Json::parse(trained.out).at("last_step").is_null()) << trained.out;
}

TEST_F(TrainingStartTest, AFolderThatCannotTakeCheckpointsIsRefusedBeforeTheFirstStep) {
  std::filesystem::create_directory(work.Path("out"));
  work.Write("out/checkpoint", "a file");
  const Finished refused = work.Dsat({"train", "deepspeed.yaml", "--out", "out", "--steps", "3"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(refused.err,
            "dsat: cannot create folder " + work.Path("out/checkpoint") + ": Not a directory\n");
}

TEST_F(TrainingStartTest, TextForAModelOfImagesIsRefusedAsTextAndNotByItsLength) {
  work.Write("deepspeed.yaml", R"(
entrypoint: builtin
hyperparameters:
  deepspeed_config: ds_config.json
  model: {type: resnet}
  data: {type: text, path: text.txt, seq_len: 4}
)");
  work.Write("text.txt", "some bytes");
  const Finished refused =
      work.Fail({"train", "deepspeed.yaml", "--steps", "1"},
                "/hyperparameters/model: the model takes images of 32 x 32 x 3, but ");
  EXPECT_THAT(refused.err, HasSubstr("/hyperparameters/data has tokens; change one of them"));
}

}  // namespace
}  // namespace dsat
