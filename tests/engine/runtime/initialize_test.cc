// Engines with all that they run on: batches step by step, several at once, what is refused.
#include "engine/runtime/initialize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "engine/runtime/rank_environment.h"
#include "tests/base/error_code.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

using testing::HasSubstr;

constexpr int kSteps = 3;

NamedConfig Config(int stage, bool overlap) {
  return {{{"train_micro_batch_size_per_gpu", 2},
           {"gradient_accumulation_steps", 3},
           {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
           {"zero_optimization", {{"stage", stage}, {"overlap_comm", overlap}}}},
          "test.json"};
}

TrainingArgs Args(Model model, NamedConfig config) {
  return {.model = std::move(model),
          .config = std::move(config),
          .device = MakeTestDevice(),
          .dataset = Synthetic(),
          .seq_len = kSeqLen};
}

// The mean losses of the next steps, by TrainBatch.
std::vector<double> LossesOfBatches(Engine& engine) {
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step)
    losses.push_back(engine.TrainBatch().loss);
  return losses;
}

// One micro-batch; the mean loss of the step if it was the last of one.
std::optional<double> RunMicroBatch(Engine& engine) {
  engine.Forward(engine.NextBatch());
  engine.Backward();
  const std::optional<StepResult> step = engine.Step();
  if (!step) return std::nullopt;
  return step->loss;
}

TEST(InitializeTest, TrainingsInOneProcessDoNotDisturbEachOther) {
  RunRanks(2, [](ProcessGroup& world) {
    std::vector<double> expected_teacher, expected_student;
    {
      const auto teacher = Initialize(world, Args(TinyGpt2(), Config(3, true)));
      expected_teacher = LossesOfBatches(teacher->engine());
      const auto student = Initialize(world, Args(TinyMlp(), Config(1, true)));
      expected_student = LossesOfBatches(student->engine());
    }
    const auto teacher = Initialize(world, Args(TinyGpt2(), Config(3, true)));
    const auto student = Initialize(world, Args(TinyMlp(), Config(1, true)));
    std::vector<double> teacher_losses, student_losses;
    for (int i = 0; i < kSteps * 3; ++i) {
      if (const auto loss = RunMicroBatch(teacher->engine())) teacher_losses.push_back(*loss);
      if (const auto loss = RunMicroBatch(student->engine())) student_losses.push_back(*loss);
    }
    EXPECT_EQ(teacher_losses, expected_teacher);
    EXPECT_EQ(student_losses, expected_student);
    EXPECT_GT(teacher->device_memory().live_bytes(), 0);
  });
}

TEST(InitializeTest, NextBatchOutOfTurnIsRefused) {
  const auto world = JoinGroup({});
  const auto training = Initialize(*world, Args(TinyMlp(), Config(0, false)));
  Engine& engine = training->engine();
  engine.Forward(engine.NextBatch());
  const Error error = ErrorOf([&] { engine.NextBatch(); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(error.what(), HasSubstr("NextBatch: called out of turn; expected Backward"));
}

void ExpectRefused(TrainingArgs args, ErrorCode code, const std::string& message) {
  const auto world = JoinGroup({});
  const Error error = ErrorOf([&] { Initialize(*world, std::move(args))->engine().NextBatch(); });
  EXPECT_EQ(error.code(), code);
  EXPECT_THAT(error.what(), HasSubstr(message));
}

TEST(InitializeTest, WhatDoesNotFitIsRefusedByName) {
  NamedConfig config = Config(0, false);
  config.ds_config["zero_optimization"]["stage"] = 4;
  ExpectRefused(Args(TinyMlp(), config), ErrorCode::kInvalidArgument,
                "test.json: /zero_optimization/stage is 4");

  ExpectRefused(Args(TinyResnet(), Config(0, false)), ErrorCode::kInvalidArgument,
                "model: the model takes images");

  ExpectRefused(Args({}, Config(0, false)), ErrorCode::kInvalidArgument, "model: has no layers");

  TrainingArgs args = Args(TinyGpt2(), Config(0, false));
  args.seq_len = 17;
  ExpectRefused(std::move(args), ErrorCode::kInvalidArgument,
                "seq_len is 17; expected 1 to the model's max_seq_len, 16");

  args = Args(TinyGpt2(), Config(0, false));
  args.dataset = nullptr;
  ExpectRefused(std::move(args), ErrorCode::kFailedPrecondition, "the engine has no data set");

  args = Args(TinyGpt2(), Config(0, false));
  args.device_memory_bytes = 10'000;
  ExpectRefused(std::move(args), ErrorCode::kResourceExhausted, "device memory: ");
}

TEST(InitializeTest, TheEnvironmentNamesTheConfigFile) {
  const std::string path = fmt::format("{}dsat-{}.json", testing::TempDir(), getpid());
  std::ofstream(path) << R"({"train_batch_size": 8})";
  setenv(kEnvConfig, path.c_str(), 1);
  const NamedConfig config = ConfigFromEnvironment();
  EXPECT_EQ(config.source, path);
  EXPECT_EQ(config.ds_config, Json({{"train_batch_size", 8}}));
  std::remove(path.c_str());
  EXPECT_THROW(ConfigFromEnvironment(), Error);
  unsetenv(kEnvConfig);
  EXPECT_THROW(ConfigFromEnvironment(), Error);
}

}  // namespace
}  // namespace dsat::engine
