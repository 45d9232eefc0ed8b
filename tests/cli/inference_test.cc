// Runs dsat generate as a user who ends it in the middle, and dsat train on folders with defects.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "base/unique_fd.h"
#include "tests/base/file_size_limit.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::HasSubstr;

// Waits until the file is empty, or not there, or neither.
bool WaitUntilEmpty(const std::string& path, bool empty) {
  for (int i = 0; i < 1000; ++i) {
    if (ReadOrEmpty(path).empty() == empty) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Leaves a checkpoint where dsat generate looks for one.
void TrainOneStep(const Workspace& work) {
  work.Write("deepspeed.yaml", std::string("entrypoint: builtin") + kSmallTraining);
  work.Write("ds_config.json", R"({"train_batch_size": 2, "optimizer": {"type": "SGD"}})");
  const Finished trained = work.Dsat({"train", "deepspeed.yaml", "--steps", "1"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
}

TEST(InferenceTest, NothingSurvivesACommandThatIsKilled) {
  const Workspace work;
  ASSERT_NO_FATAL_FAILURE(TrainOneStep(work));
  const pid_t dsat = work.StartDsat(
      {"generate", "deepspeed.yaml", "--prompt", "The ", "--max-new-tokens", "100000000"}, "text");
  const std::string children = fmt::format("/proc/{}/task/{}/children", dsat, dsat);
  ASSERT_TRUE(WaitUntilEmpty(children, false));
  const std::string child = Trimmed(ReadFile(children));
  kill(dsat, SIGKILL);
  EXPECT_EQ(WaitFor(dsat), 128 + SIGKILL);
  EXPECT_TRUE(WaitUntilEmpty("/proc/" + child + "/cmdline", true));  // A zombie's is empty.
}

TEST(InferenceTest, TextThatCannotBeWrittenIsAnErrorUnlessItsReaderHasGone) {
  const Workspace work;
  ASSERT_NO_FATAL_FAILURE(TrainOneStep(work));
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
  EXPECT_EQ(WaitFor(dsat), 1);
  EXPECT_EQ(ReadFile(work.Path("gone.err")), "");
}

TEST(InferenceTest, ATaskThatCannotBeWrittenIsAnError) {
  const Workspace work;
  ASSERT_NO_FATAL_FAILURE(TrainOneStep(work));
  const FileSizeLimit limit(512);
  const Finished run = work.Dsat({"generate", "deepspeed.yaml", "--prompt", "The "});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.err, "dsat: memory for the task: File too large\n");
}

TEST(InferenceTest, TheEnvironmentOfTheExperimentFileHolds) {
  const Workspace work;
  ASSERT_NO_FATAL_FAILURE(TrainOneStep(work));
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

TEST(TrainingStartTest, WithoutTheFileLatestTheCommandKnowsWhatTheRanksContinueFrom) {
  const Workspace work;
  work.Write("deepspeed.yaml", std::string("entrypoint: builtin") + kSmallTraining);
  const auto train = [&](int train_batch_size, std::vector<std::string> more) {
    work.Write("ds_config.json",
               fmt::format(R"({{"train_batch_size": {}, "optimizer": {{"type": "SGD"}}}})",
                           train_batch_size));
    more.insert(more.begin(), {"train", "deepspeed.yaml", "--out", "out", "--steps"});
    Finished trained = work.Dsat(more);
    EXPECT_EQ(trained.exit_code, 0) << trained.err;
    return trained;
  };
  const std::string checkpoint = work.Path("out/checkpoint/global_step");
  train(2, {"2"});
  std::filesystem::remove(work.Path("out/checkpoint/latest"));
  const Json done = Json::parse(train(2, {"2", "--json"}).out);
  EXPECT_EQ(done.at("checkpoint"), checkpoint + "2");
  const std::string said = train(4, {"3"}).err;
  EXPECT_THAT(said, HasSubstr("continuing from " + checkpoint + "2;"));
  EXPECT_THAT(said, HasSubstr("warning: train_batch_size was 2 and is 4 from now on"));
}

TEST(TrainingStartTest, AScriptHasNoResultsOfATrainingThatWasInItsFolder) {
  const Workspace work;
  ASSERT_NO_FATAL_FAILURE(TrainOneStep(work));
  work.Write("script.yaml",
             "entrypoint: python3 train.py --deepspeed_config ds_config.json\n"
             "hyperparameters: {deepspeed_config: ds_config.json}\n");
  work.Write("train.py", "");
  const Finished trained = work.Dsat({"train", "script.yaml", "--json"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_TRUE(Json::parse(trained.out).at("last_step").is_null()) << trained.out;
}

TEST(TrainingStartTest, AFolderThatCannotTakeCheckpointsIsRefusedBeforeTheFirstStep) {
  const Workspace work;
  work.Write("deepspeed.yaml", std::string("entrypoint: builtin") + kSmallTraining);
  work.Write("ds_config.json", R"({"train_batch_size": 2, "optimizer": {"type": "SGD"}})");
  std::filesystem::create_directory(work.Path("out"));
  work.Write("out/checkpoint", "a file");
  const Finished refused = work.Dsat({"train", "deepspeed.yaml", "--out", "out", "--steps", "3"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(refused.err,
            "dsat: cannot create folder " + work.Path("out/checkpoint") + ": Not a directory\n");
}

TEST(TrainingStartTest, TextForAModelOfImagesIsRefusedAsTextAndNotByItsLength) {
  const Workspace work;
  work.Write("deepspeed.yaml", R"(
entrypoint: builtin
hyperparameters:
  deepspeed_config: ds_config.json
  model: {type: resnet}
  data: {type: text, path: text.txt, seq_len: 4}
)");
  work.Write("text.txt", "some bytes");
  work.Write("ds_config.json", R"({"train_batch_size": 2, "optimizer": {"type": "SGD"}})");
  const Finished refused = work.Dsat({"train", "deepspeed.yaml", "--steps", "1"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err,
              HasSubstr("/hyperparameters/model: the model takes images of 32 x 32 x 3, but "));
  EXPECT_THAT(refused.err, HasSubstr("/hyperparameters/data has tokens; change one of them"));
}

}  // namespace
}  // namespace dsat
