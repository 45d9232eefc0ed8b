// The dsat-trial binary, as a supervisor starts it: processes over a memory file, without a runner.
#include "proto/trial.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>

#include "tests/engine/worker/trial_process.h"

namespace dsat::engine {
namespace {

class TrialTest : public TrialProcessTest {};

TEST_F(TrialTest, TwoRanksMeasureEveryMetric) {
  task_.fixed_window = true;
  const auto exits = RunWell(2);
  EXPECT_EQ(exits[1].out, "");
  const Json line = Json::parse(exits[0].out);
  EXPECT_EQ(line.at("micro_batch_size"), 2);
  EXPECT_EQ(line.at("accumulation_steps"), 2);
  const Measurement measurement = MeasurementFromJson(line.at("measurement"), "stdout");
  for (const std::string name : {"FLOPS_per_gpu", "throughput", "latency", "forward", "backward",
                                 "step", "peak_bytes", "loss"}) {
    ASSERT_TRUE(measurement.contains(name)) << name;
    EXPECT_GT(measurement.at(name).value, 0) << name;
  }
  EXPECT_EQ(measurement.at("latency").samples, 3);
  // 2 ranks x 2 samples x 2 micro-batches. (Medians of reciprocals of three steps are reciprocal.)
  EXPECT_NEAR(measurement.at("throughput").value * measurement.at("latency").value, 8000, 1);
}

TEST_F(TrialTest, RanksMeasureTogetherUntilTheErrorIsSmall) {
  task_.start_profile_step = 0;
  task_.end_profile_step = 0;
  const auto exits = RunWell(2);
  const Measurement measurement =
      MeasurementFromJson(Json::parse(exits[0].out).at("measurement"), "stdout");
  EXPECT_GT(measurement.at("throughput").samples, 1);
  EXPECT_EQ(measurement.at("latency").samples, measurement.at("throughput").samples);
  EXPECT_THAT(exits[0].log, testing::HasSubstr("standard_error="));
}

TEST_F(TrialTest, ASoakRunsItsStepsAndSavesCheckpoints) {
  task_.mode = TrialTask::Mode::kSoak;
  task_.start_profile_step = 2;
  task_.train_steps = 7;
  task_.checkpoint_dir = folder_ / "checkpoint";
  const std::vector<RankExit> exits = RunWell(2);
  const Json measured = Json::parse(exits[0].out);
  EXPECT_EQ(measured["measurement"]["throughput"]["samples"], 5);
  EXPECT_GT(measured["measurement"]["host_bytes"]["value"], 1e6);
  EXPECT_EQ(measured["losses"].size(), 7U);
  EXPECT_EQ(measured["rank_peak_bytes"].size(), 2U);
  EXPECT_THAT(ReadFile(task_.checkpoint_dir + "/latest"), testing::HasSubstr("global_step7"));
  EXPECT_GT(measured["measurement"]["checkpoint_ms"]["value"], 0);
}

TEST_F(TrialTest, ASoakOnHostsThatShareNoFolderSavesNothing) {
  task_.mode = TrialTask::Mode::kSoak;
  task_.start_profile_step = 1;
  task_.train_steps = 3;
  task_.checkpoint_dir = folder_ / "of-the-runner/checkpoint";
  const std::vector<RankExit> exits = RunWell(2);
  EXPECT_FALSE(Json::parse(exits[0].out)["measurement"].contains("checkpoint_ms"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "of-the-runner"));
}

TEST_F(TrialTest, ATrialThatCannotBeGoodEnoughEndsEarly) {
  task_.start_profile_step = 10;
  task_.end_profile_step = 1000;
  task_.give_up_below = 1e9;  // Samples/s.
  const auto exits = RunWell(2);
  const Json line = Json::parse(exits[0].out);
  EXPECT_EQ(line.at("measurement").at("throughput").at("samples"), 2);
  EXPECT_THAT(exits[0].log, testing::HasSubstr(" steps=3 counted=2 "));
}

TEST_F(TrialTest, TheProfileDescribesTheModel) {
  task_.mode = TrialTask::Mode::kProfile;
  task_.device_memory_bytes = 50'000'000;
  const auto exits = RunWell(1);
  const Json line = Json::parse(exits[0].out);
  EXPECT_EQ(line.at("micro_batch_size"), 1);
  const ModelProfile profile = ProfileFromJson(line.at("profile"), "stdout");
  // wte, wpe; per block two LayerNorms and 4 matrices with bias; the last LayerNorm. Tied head.
  const int64_t C = 32;
  const int64_t block = 4 * C + (C * 3 * C + 3 * C) + (C * C + C) + (8 * C * C + 5 * C);
  EXPECT_EQ(profile.num_params, 64 * C + 32 * C + 2 * block + 2 * C);
  EXPECT_EQ(profile.trainable_num_params, profile.num_params);
  EXPECT_EQ(profile.two_units_num_params, 2 * block);
  EXPECT_EQ(profile.device_memory_bytes, 50'000'000);
  EXPECT_GT(profile.activation_bytes_per_sample, 16 * C * 4);
  EXPECT_GT(profile.matmul_flops_per_s, 1000);
  EXPECT_GT(profile.copy_bytes_per_s, 1000);
  EXPECT_EQ(profile.to_device_bytes_per_s, 0);  // The CPU's memory is the host's.
  // 2 FLOPs per weight and token in the products, the tied head's included, and attention.
  const int64_t T = 16;
  const int64_t products = 2 * T * (2 * 12 * C * C + 64 * C);
  EXPECT_EQ(profile.forward_flops_per_sample, products + 2 * 2 * 2 * T * T * C);
}

TEST_F(TrialTest, TheConfigsSeedComesBeforeTheExperiments) {
  task_.fixed_window = true;  // The loss is that of the last step.
  const auto loss = [this] { return Json::parse(Run(1)[0].out)["measurement"]["loss"]["value"]; };
  task_.seed = 5;
  const Json five = loss();
  task_.seed = 6;
  EXPECT_NE(loss(), five);
  task_.ds_config["seed"] = 5;
  EXPECT_EQ(loss(), five);
}

TEST_F(TrialTest, ADeviceThatIsTooSmallIsInfeasibleWithTheNumbers) {
  task_.device_memory_bytes = 200'000;
  const auto exits = Run(1);
  EXPECT_EQ(exits[0].code, kExitInfeasible);
  EXPECT_EQ(exits[0].out, "");
  EXPECT_THAT(exits[0].log, testing::HasSubstr("infeasible"));
  EXPECT_THAT(exits[0].log, testing::HasSubstr("device memory"));
}

TEST_F(TrialTest, ASettingThatCannotBeHonoredIsInfeasibleByName) {
  task_.ds_config["sparse_gradients"] = true;
  ExpectEnd(kExitInfeasible, "sparse_gradients");
}

TEST_F(TrialTest, AMissingFileIsAnErrorByName) {
  task_.data = {{"type", "text"}, {"path", "no-such-text"}, {"seq_len", 16}};
  task_.model["vocab_size"] = 256;
  ExpectEnd(kExitError, "no-such-text");
}

TEST_F(TrialTest, AModelWithTooFewWordsForTheDataOrItsValidationIsAnError) {
  const Json data = task_.data;
  task_.data["vocab_size"] = 65;
  const auto of_training = Run(1);
  task_.data = data;
  task_.data["validation"] = {{"vocab_size", 65}};
  for (const auto& exits : {of_training, Run(1)}) {
    EXPECT_EQ(exits[0].code, kExitError);
    EXPECT_THAT(exits[0].log, testing::HasSubstr("vocab_size is 64; expected at least"));
  }
}

TEST_F(TrialTest, TrainingSavesACheckpointAndContinuesFromIt) {
  ToTrain(4);
  task_.ds_config["steps_per_print"] = 2;
  auto exits = RunWell(2);
  EXPECT_THAT(exits[0].log, testing::HasSubstr("step=2 loss="));
  EXPECT_THAT(exits[0].log, testing::HasSubstr("step=4 loss="));
  EXPECT_THAT(exits[0].log, testing::Not(testing::HasSubstr("step=3")));
  EXPECT_EQ(exits[1].log, "");
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/latest"), "global_step4");

  task_.train_steps = 6;
  exits = RunWell(1);  // On another number of ranks.
  EXPECT_THAT(exits[0].log, testing::HasSubstr("continuing"));
  EXPECT_THAT(exits[0].log, testing::HasSubstr("step=6 loss="));
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/latest"), "global_step6");

  // A process that is killed may leave its first checkpoint without the name in this file.
  std::filesystem::remove(task_.checkpoint_dir + "/latest");
  task_.train_steps = 8;
  exits = RunWell(1);
  EXPECT_THAT(exits[0].log, testing::HasSubstr("continuing"));
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/latest"), "global_step8");
  WriteFileAtomic(task_.checkpoint_dir + "/latest", "\n");
  exits = RunWell(1);
  EXPECT_THAT(exits[0].log, testing::HasSubstr("not good: " + task_.checkpoint_dir +
                                               "/latest: names no checkpoint: continuing from "));
  EXPECT_THAT(exits[0].log, testing::HasSubstr("/global_step8 step=8"));
}

TEST_F(TrialTest, EveryStepAndValidationIsInTheHistoryOnceAcrossRuns) {
  ToTrain(7);
  task_.data["validation"] = {{"samples", 5}};
  task_.training.eval_interval = 2;
  task_.training.checkpoint_interval = 2;
  RunWell(2);
  const std::vector<Json> whole = History();

  std::filesystem::remove_all(task_.checkpoint_dir);
  std::filesystem::remove(task_.history_path);
  task_.train_steps = 4;
  RunWell(2);
  // As a run leaves it that was killed after its checkpoint: steps that will be trained again, an
  // incomplete line, and no validation of the last step.
  std::vector<Json> lines = History();
  ASSERT_TRUE(lines.back().contains("validation_loss"));
  lines.pop_back();
  std::ofstream file(task_.history_path);
  for (const Json& line : lines)
    file << line.dump() << "\n";
  file << R"({"step": 5, "loss": 9})"
       << "\n"
       << R"({"step": 6, "lo)" << std::flush;
  task_.train_steps = 7;
  RunWell(2);

  const std::vector<Json> both = History();
  ASSERT_EQ(both.size(), 7u + 4);  // Validations after steps 2, 4, 6 and 7.
  ASSERT_EQ(whole.size(), both.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const char* key :
         {"step", "loss", "validation_loss", "lr", "grad_norm", "loss_scale", "skipped"}) {
      EXPECT_EQ(whole[i].value(key, Json()), both[i].value(key, Json())) << i << " " << key;
    }
  }
  EXPECT_GT(both[0].at("tokens_per_second").get<double>(), 0);
  EXPECT_GT(both[0].at("peak_bytes").get<int64_t>(), 0);
}

TEST_F(TrialTest, AHistoryOfAnotherProgramIsLeftAlone) {
  ToTrain(2);
  const std::string theirs = "{\"epoch\": 1, \"loss\": 0.5}\n";
  WriteFileAtomic(task_.history_path, theirs);
  ExpectEnd(kExitError, "it has a line that no training of dsat has written");
  EXPECT_EQ(ReadFile(task_.history_path), theirs);
}

TEST_F(TrialTest, AValidationThatCannotRunIsRefusedBeforeTheFirstStep) {
  ToTrain(4);
  task_.training.eval_interval = 2;
  ExpectEnd(kExitInfeasible, "/hyperparameters/data has no ");
  EXPECT_FALSE(std::filesystem::exists(task_.history_path));
}

TEST_F(TrialTest, DataThatDoNotFitTheModelEndATrainingForGood) {
  ToTrain(1000);
  std::vector<uint16_t> tokens(100, 1);
  tokens[50] = 64;
  WriteFileAtomic(folder_ / "a.bin", {reinterpret_cast<const char*>(tokens.data()), 200});
  task_.data = {
      {"type", "tokens"}, {"path", folder_ / "a.bin"}, {"seq_len", 16}, {"vocab_size", 64}};
  ExpectEnd(kExitInfeasible,
            "a.bin: token 50 is 64; expected less than "
            "vocab_size, 64: raise those of the data");
}

TEST_F(TrialTest, ATrainingThatDivergesEndsWithTheReasonAndKeepsItsLastGoodCheckpoint) {
  ToTrain(3);
  task_.training.checkpoint_interval = 1;
  RunWell(2);
  task_.train_steps = 50;
  task_.ds_config["optimizer"]["params"]["lr"] = 1e30;
  const auto exits = Run(2);
  EXPECT_EQ(exits[0].code, kExitInfeasible);
  EXPECT_EQ(exits[1].code, kExitInfeasible);
  EXPECT_THAT(exits[0].log,
              testing::HasSubstr("diverged: the losses of the last 10 steps, up to step 14, "));
  EXPECT_EQ(History().size(), 14u);
  // The loss of step 4 is still finite, but not that of the parameters that it leaves.
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/latest"), "global_step3");
  task_.train_steps = 7;  // Too few to see ten.
  for (const RankExit& exit : Run(2)) {
    EXPECT_EQ(exit.code, kExitInfeasible);
    EXPECT_THAT(exit.log, testing::HasSubstr("the loss of the last step, 7, is not finite"));
  }
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/latest"), "global_step3");
}

TEST_F(TrialTest, ATrainingWhoseLossesExplodeDiverges) {
  ToTrain(80);
  task_.ds_config["optimizer"]["params"]["lr"] = 100;
  const auto exits = Run(1);
  EXPECT_EQ(exits[0].code, kExitInfeasible);
  EXPECT_THAT(exits[0].log, testing::HasSubstr("diverged: the losses of the last 50 steps"));
  EXPECT_THAT(exits[0].log, testing::HasSubstr("more than 10 times as high as the first one"));
}

TEST_F(TrialTest, FilesOfOthersInTheFolderOfCheckpointsStay) {
  ToTrain(3);
  const std::string other = task_.checkpoint_dir + "/global_step1";
  std::filesystem::create_directories(other);
  WriteFileAtomic(other + "/mp_rank_00_model_states.pt", "DeepSpeed's");
  auto exits = Run(2);
  EXPECT_EQ(exits[0].code, kExitError);
  EXPECT_THAT(exits[0].log,
              testing::HasSubstr(other + ": it holds files, but none of a checkpoint"));
  EXPECT_EQ(ReadFile(other + "/mp_rank_00_model_states.pt"), "DeepSpeed's");

  std::filesystem::remove_all(other);
  RunWell(2);
  const std::string note = task_.checkpoint_dir + "/global_step3/note.txt";
  WriteFileAtomic(note, "the user's");
  task_.train_steps = 5;
  RunWell(2);
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/latest"), "global_step5");
  EXPECT_EQ(ReadFile(note), "the user's");
  EXPECT_FALSE(std::filesystem::exists(task_.checkpoint_dir + "/global_step3/manifest.json"));
}

TEST_F(TrialTest, ATrainingThatSkipsNearlyAllStepsIsNoSuccess) {
  ToTrain(12);
  task_.ds_config["fp16"] = {{"enabled", true}, {"initial_scale_power", 60}};
  ExpectEnd(kExitInfeasible, "diverged: 12 of 12 steps were skipped");
  const std::vector<Json> lines = History();
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_TRUE(lines[0].at("skipped").get<bool>());
  EXPECT_EQ(lines[0].at("loss_scale").get<double>(), std::exp2(60));
}

// It would overflow again.
TEST_F(TrialTest, AnOverflowAtTheSmallestLossScaleIsFinal) {
  ToTrain(12);
  task_.ds_config["fp16"] = {{"enabled", true},
                             {"initial_scale_power", 60},
                             {"hysteresis", 1},
                             {"min_loss_scale", std::exp2(59)}};
  ExpectEnd(kExitInfeasible, "/fp16/min_loss_scale is");
}

TEST_F(TrialTest, CheckpointsOnTheWayReplaceEachOther) {
  ToTrain(5);
  task_.training.checkpoint_interval = 2;
  RunWell(2);
  EXPECT_EQ(ReadFile(task_.checkpoint_dir + "/latest"), "global_step5");
  EXPECT_FALSE(std::filesystem::exists(task_.checkpoint_dir + "/global_step2"));
  EXPECT_FALSE(std::filesystem::exists(task_.checkpoint_dir + "/global_step4"));
}

TEST_F(TrialTest, WhereTokensAreNoBytesTheirNumbersAreReadAndWritten) {
  ToTrain(1);
  RunWell(1);
  task_.mode = TrialTask::Mode::kGenerate;
  task_.generate = {.prompt = "3 63", .max_new_tokens = 4};
  task_.json = true;
  const auto json = Run(1);
  ASSERT_EQ(json[0].code, kExitOk) << json[0].log;
  const Json sample = Json::parse(json[0].out).at("samples").at(0);
  ASSERT_EQ(sample.size(), 4U);
  task_.json = false;
  EXPECT_EQ(Run(1)[0].out, fmt::format("3 63 {} {} {} {}\n", sample[0].dump(), sample[1].dump(),
                                       sample[2].dump(), sample[3].dump()));
  for (const char* prompt : {"The", "3 64", "-1", "1.5", ""}) {
    task_.generate.prompt = prompt;
    const auto exits = Run(1);
    EXPECT_EQ(exits[0].code, kExitError) << prompt;
    EXPECT_THAT(exits[0].log, testing::HasSubstr("the prompt ")) << prompt;
  }
}

}  // namespace
}  // namespace dsat::engine
