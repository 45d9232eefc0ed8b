// The records of a training besides metrics.jsonl: checkpoints that stay, and the files of
// monitors.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "engine/config/ds_config.h"
#include "engine/model/models.h"
#include "engine/runtime/predict.h"
#include "engine/worker/history.h"
#include "tests/engine/worker/trial_process.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class TrainingRecordsTest : public TrialProcessTest {
 protected:
  TrainingRecordsTest() { ToTrain(8); }
  std::set<std::string> Saved() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(task_.checkpoint_dir))
      if (entry.is_directory()) names.insert(entry.path().filename());
    return names;
  }
  // Step and loss of the lowest validation loss in metrics.jsonl.
  std::pair<int64_t, double> LowestValidation() const {
    std::pair<int64_t, double> lowest = {0, HUGE_VAL};
    for (const Json& json : History()) {
      if (const double loss = json.value("validation_loss", HUGE_VAL); loss < lowest.second)
        lowest = {json.at("step"), loss};
    }
    return lowest;
  }
};

TEST_F(TrainingRecordsTest, TheNewestCheckpointsStayAlsoThoseOfEarlierRuns) {
  task_.training = {.checkpoint_interval = 1, .keep = 3};
  task_.train_steps = 4;
  RunWell(2);
  EXPECT_THAT(Saved(), ElementsAre("global_step2", "global_step3", "global_step4"));
  fs::create_directories(task_.checkpoint_dir + "/mine");
  fs::create_directories(task_.checkpoint_dir + "/global_step99");  // It is another training's.
  task_.train_steps = 5;
  task_.training.keep = 2;
  RunWell(2);
  EXPECT_THAT(Saved(), ElementsAre("global_step4", "global_step5", "global_step99", "mine"));
}

TEST_F(TrainingRecordsTest, TheCheckpointWithTheLowestValidationLossStays) {
  task_.training = {.checkpoint_interval = 8, .keep_best = true, .eval_interval = 1};
  task_.data["validation"] = {{"samples", 5}};
  task_.ds_config["optimizer"]["params"]["lr"] = 0.3;  // The loss rises again.
  RunWell(2);
  const auto [step, loss] = LowestValidation();
  ASSERT_LT(step, 8);
  const std::string best = fmt::format("global_step{}", step);
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/best"), best);
  EXPECT_THAT(Saved(), ElementsAre(best, "global_step8"));

  // A run that continues has no reason to call another one the best.
  task_.train_steps = 9;
  RunWell(2);
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/best"),
            fmt::format("global_step{}", LowestValidation().first));

  task_.mode = TrialTask::Mode::kEvaluate;
  task_.json = true;
  task_.checkpoint_tag = "best";
  const auto exits = RunWell(2);
  EXPECT_EQ(Json::parse(exits[0].out).at("loss"), LowestValidation().second);
}

TEST_F(TrainingRecordsTest, TheBestIsThatOfTheValidationsForWhichOneCouldBeKept) {
  task_.training = {.checkpoint_interval = 8, .eval_interval = 1};
  task_.data["validation"] = {{"samples", 5}};
  task_.ds_config["optimizer"]["params"]["lr"] = 0.3;  // The loss rises again.
  RunWell(2);
  ASSERT_LT(LowestValidation().first, 8);
  task_.training.keep_best = true;
  task_.train_steps = 9;
  RunWell(2);
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/best"), "global_step9");
}

TEST_F(TrainingRecordsTest, ACheckpointThatIsTheBestNoLongerDoesNotStay) {
  task_.training = {.checkpoint_interval = 8, .keep_best = true, .eval_interval = 2};
  task_.data["validation"] = {{"samples", 5}};
  RunWell(2);
  ASSERT_EQ(LowestValidation().first, 8);
  EXPECT_THAT(Saved(), ElementsAre("global_step8"));
}

TEST_F(TrainingRecordsTest, ThePeakIsThatOfTheStageThatNeedsMost) {
  task_.model["n_layer"] = 3;
  task_.ds_config["pipeline"] = {{"stages", 2}};
  task_.ds_config["zero_optimization"]["stage"] = 1;
  RunWell(2);
  int64_t most = 0;
  const Model model = MakeModel(task_.model, "model", task_.base_dir);
  const DsConfig config = ParseDsConfig(task_.ds_config, "ds_config", 2, nullptr);
  for (const int rank : {0, 1})
    most = std::max(most, Predict(model, config, 16, rank, 2, 1).run_peak_bytes);
  EXPECT_EQ(History().at(0).at("peak_bytes"), most);
}

TEST_F(TrainingRecordsTest, AValidationCanTakeAPartOfTheData) {
  task_.training = {.eval_interval = 8, .eval_batches = 1};
  task_.data["validation"] = {{"samples", 40}};
  RunWell(2);
  const double of_a_part = LowestValidation().second;
  task_.mode = TrialTask::Mode::kEvaluate;
  task_.json = true;
  EXPECT_NE(Json::parse(Run(2)[0].out).at("loss"), of_a_part);
  task_.data["validation"]["samples"] = 8;  // A batch: 2 ranks x 2 samples x 2 micro-batches.
  EXPECT_EQ(Json::parse(Run(2)[0].out).at("loss"), of_a_part);
}

TEST_F(TrainingRecordsTest, CsvFilesHaveEveryStepOnceAcrossRuns) {
  task_.ds_config["csv_monitor"] = {
      {"enabled", true}, {"output_path", folder_.path()}, {"job_name", "scalars"}};
  task_.data["validation"] = {{"samples", 5}};
  task_.training = {.checkpoint_interval = 1, .keep = 8, .eval_interval = 4};
  task_.train_steps = 4;
  RunWell(2);
  // Continued from the second step, as after a crash.
  WriteFileAtomic(task_.checkpoint_dir + "/latest", "global_step2");
  RunWell(2);
  const std::vector<std::string> losses = Lines("scalars/Train_Samples_train_loss.csv");
  ASSERT_EQ(losses.size(), 5U);
  EXPECT_EQ(losses[0], "step,train_loss");
  const std::vector<Json> history = History();
  for (size_t i = 1; i <= 4; ++i) {
    const double loss = history[i - 1].at("loss");
    EXPECT_EQ(losses[i], fmt::format("{},{}", 8 * i, loss));
  }
  EXPECT_EQ(Lines("scalars/Train_Samples_lr.csv").size(), 5U);
  EXPECT_THAT(Lines("scalars/Validation_Samples_loss.csv"),
              ElementsAre("step,loss", HasSubstr("32,")));
  EXPECT_FALSE(fs::exists(folder_ / "scalars/Train_Samples_loss_scale.csv"));
}

TEST_F(TrainingRecordsTest, AFolderOfAMonitorThatCannotBeMadeIsNamedBeforeTheFirstStep) {
  std::ofstream(folder_ / "file") << "x";
  task_.ds_config["tensorboard"] = {
      {"enabled", true}, {"output_path", folder_ / "file"}, {"job_name", "job"}};
  ExpectEnd(kExitError, folder_ / "file/job");
  task_.ds_config.erase("tensorboard");
  task_.ds_config["csv_monitor"] = {{"enabled", true}, {"output_path", "/dev/null/csv"}};
  ExpectEnd(kExitError, "/csv_monitor/output_path is \"/dev/null/csv\": ");
  EXPECT_THAT(Lines("metrics.jsonl"), testing::IsEmpty());
}

// Skipped where the Python of DSAT_TEST_PYTHON cannot import tensorboard.
TEST_F(TrainingRecordsTest, TensorBoardReadsTheScalarsAndDropsThoseThatWereTrainedAgain) {
  const char* const given = std::getenv("DSAT_TEST_PYTHON");
  const std::string python = given != nullptr ? given : "/usr/bin/python3";
  if (std::system((python + " -c 'import tensorboard' >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP()
        << "this Python has no tensorboard; scripts/setup --tests installs one that has it";
  DsConfig config;
  config.batch.train_batch_size = 8;
  config.fp16.enabled = true;
  config.tensorboard = {.enabled = true, .output_path = folder_.path(), .job_name = "job"};
  {
    Monitors monitors(config, 0);
    for (int step = 1; step <= 3; ++step)
      monitors.Add({.step = step, .loss = 1.0 * step, .lr = 0.5, .loss_scale = 1024}, 8 * step);
  }
  Monitors monitors(config, 8);
  monitors.Add({.step = 2, .loss = 20, .lr = 0.0, .loss_scale = 512}, 16);
  monitors.Add({.step = 2, .validated = true, .loss = 7}, 16);
  const std::string script = DSAT_SOURCE_DIR "/tests/engine/worker/read_tensorboard.py";
  ASSERT_EQ(std::system(fmt::format("{0} {1} {2}/job >{2}/read.json 2>{2}/errors", python, script,
                                    folder_.path())
                            .c_str()),
            0)
      << ReadFile(folder_ / "errors");
  const Json read = ReadJsonFile(folder_ / "read.json");
  EXPECT_EQ(read, Json({{"Train/Samples/train_loss", {{8, 1.0}, {16, 20.0}}},
                        {"Train/Samples/lr", {{8, 0.5}, {16, 0.0}}},
                        {"Train/Samples/loss_scale", {{8, 1024.0}, {16, 512.0}}},
                        {"Validation/Samples/loss", Json::array({{16, 7.0}})}}));
}

}  // namespace
}  // namespace dsat::engine
