// The engine end to end: it learns, it stops at its memory limit, it skips bad steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "engine/comm/counting_group.h"
#include "engine/runtime/checkpoint/checkpoint.h"
#include "engine/runtime/engine_internals.h"
#include "engine/runtime/predict.h"
#include "engine/runtime/state/init.h"
#include "tests/base/error_code.h"
#include "tests/engine/runtime/training.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

TEST(EngineTest, LossFallsOnTextInBf16OnTwoRanksWithShardedState) {
  const Model model = Gpt2(1, 32, 256);
  const auto data = OpenDataset({{"type", "text"}, {"path", "engine/plan"}, {"seq_len", kSeqLen}},
                                DSAT_SOURCE_DIR, 3, "/data");
  DsConfig config = TinyConfig(3, 2, 1);
  config.bf16 = true;
  config.optimizer.lr = 1e-2;
  RunRanks(2, [&](ProcessGroup& group) {
    const RankRun run = RunRank(model, config, 40, *data, group);
    EXPECT_NEAR(run.steps.front().loss, std::log(256), 0.3);
    EXPECT_LT(run.steps.back().loss, 0.75 * run.steps.front().loss);
  });
}

// One rank of TinyGpt2 on a device of `limit_bytes`, what kernels keep for themselves included.
void TrainWithin(int64_t limit_bytes, int num_steps) {
  const Model model = TinyGpt2();
  const auto data = Synthetic();
  RunRanks(1, [&](ProcessGroup& group) {
    TestDevice device(group, limit_bytes);
    Engine engine(device.For(model, data.get(), kSeqLen), TinyConfig(0, 1, 1), 7);
    for (int step = 0; step < num_steps; ++step)
      engine.TrainBatch();
  });
}

TEST(EngineTest, ItRunsAtThePredictedPeakAndNotOneByteBelow) {
  const int64_t peak =
      Predict(TinyGpt2(), TinyConfig(0, 1, 1), kSeqLen, 0, 1, 1, {}, TestDeviceKind()).peak_bytes;
  TrainWithin(peak, 2);
  EXPECT_THROW(TrainWithin(peak - 1, 1), OutOfMemory);
  TrainWithin(peak, 2);  // The process is none the worse for it.
}

TEST(EngineTest, OutOfMemoryNamesTheUseAndTheLimit) {
  try {
    TrainWithin(100'000 + MakeCountingKernels(1, TestDeviceKind())->WorkspaceBytes(), 0);
    FAIL() << "should not fit";
  } catch (const OutOfMemory& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("device memory"));
    EXPECT_THAT(e.what(), testing::ContainsRegex("parameters|optimizer state"));
    EXPECT_THAT(e.what(), testing::ContainsRegex("[0-9]"));
  }
}

TEST(EngineTest, AfterOutOfMemoryTheSameArenaIsEmpty) {
  const Model model = TinyGpt2();
  const auto group = std::make_unique<CountingGroup>(0, 2);
  const auto kernels = MakeCountingKernels(1);
  Arena arena("device memory", Arena::Kind::kCounting, 150'000);
  Arena host("host memory", Arena::Kind::kReal, 0);
  const Resources resources = {model, *group, {arena, host, *kernels, *kernels}, nullptr, kSeqLen};
  DsConfig config = TinyConfig(3, 2, 1);
  EXPECT_THROW(Engine(resources, config, 7), OutOfMemory);  // Buckets as large as the model.
  EXPECT_EQ(arena.live_bytes(), 0);
  config.zero.reduce_bucket_size = config.zero.allgather_bucket_size = 1000;
  EXPECT_NO_THROW(Engine(resources, config, 7));
  EXPECT_EQ(arena.live_bytes(), 0);
}

TEST(EngineTest, ClippingBoundsTheUpdate) {
  const Model model = TinyMlp();
  DsConfig config = TinyConfig(2, 2, 1);
  config.optimizer.type = "sgd";
  config.optimizer.lr = 1;
  config.gradient_clipping = 1e-3;
  const std::vector<float> before = WholeParams(model, Train(model, config, 2, 0));
  const auto runs = Train(model, config, 2, 1);
  const std::vector<float> after = WholeParams(model, runs);
  double sum = 0;
  for (size_t i = 0; i < before.size(); ++i)
    sum += std::pow(after[i] - before[i], 2);
  EXPECT_GT(runs[0].steps[0].grad_norm, 0.01);
  EXPECT_NEAR(std::sqrt(sum), 1e-3, 2e-6);
}

TEST(EngineTest, TheScheduleSetsTheRate) {
  DsConfig config = TinyConfig(0, 1, 1);
  config.scheduler = {.type = "WarmupLR",
                      .warmup_min_lr = 0,
                      .warmup_max_lr = 0.5,
                      .warmup_num_steps = 2,
                      .warmup_linear = true};
  const auto runs = Train(TinyMlp(), config, 1, 4);
  EXPECT_EQ(runs[0].steps[0].lr, 0);
  EXPECT_EQ(runs[0].steps[1].lr, 0);
  EXPECT_EQ(runs[0].steps[2].lr, 0.25);
  EXPECT_EQ(runs[0].steps[3].lr, 0.5);
}

TEST(EngineTest, TheTimesOfAStepAddUpToItsLatency) {
  const auto runs = Train(TinyGpt2(), TinyConfig(3, 2, 1), 2, 2);
  for (const RankRun& run : runs) {
    const StepResult& step = run.steps.back();
    EXPECT_GT(step.forward_ms, 0);
    EXPECT_GT(step.backward_ms, 0);
    EXPECT_GT(step.step_ms, 0);
    EXPECT_LE(step.forward_ms + step.backward_ms + step.step_ms, step.latency_ms);
  }
}

TEST(InitTest, QuantilesAreTheNormalDistributions) {
  EXPECT_NEAR(NormalQuantile(0.5), 0, 1e-9);
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963985, 1e-8);
  EXPECT_NEAR(NormalQuantile(0.84134474606854293), 1, 1e-8);
  EXPECT_NEAR(NormalQuantile(0.001349898031630095), -3, 1e-8);
  EXPECT_NEAR(NormalQuantile(0x1p-33), -6.338, 1e-2);
}

TEST(InitTest, AnySliceOfAParameterStartsAsTheWholeDoesOnAnyNumberOfThreads) {
  constexpr int64_t kElems = 200000, kBegin = 1233;
  const ParamSpec spec = {
      .name = "w", .shape = {kElems}, .init = ParamSpec::Init::kNormal, .stddev = 0.5F};
  std::vector<float> whole(kElems);
  StartValues(spec, 7, 0, whole, /*num_threads=*/1);
  for (const int64_t num_threads : {1, 2, 5, 16}) {
    std::vector<float> part(kElems - 2 * kBegin);
    StartValues(spec, 7, kBegin, part, num_threads);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + kBegin)) << num_threads;
  }
  // The numbers of seed 7 never change.
  EXPECT_EQ(whole[0], -1.05387485F);
  EXPECT_EQ(whole[kElems - 1], -0.554434419F);
  double sum = 0;
  double squares = 0;
  for (const float value : whole) {
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kElems, 0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / kElems), 0.5, 0.003);
}

// A loop of one's own: Forward, Backward, Step for every micro-batch.
TEST(EngineTest, StepByStepTrainsAsTrainBatchDoes) {
  const Model model = TinyGpt2();
  const DsConfig config = TinyConfig(2, 1, 3);
  const std::vector<RankRun> expected = Train(model, config, 1, 2);
  OnEngines(model, config, 1, [&](Engine& engine, ProcessGroup&) {
    for (size_t step = 0; step < 2; ++step) {
      double loss = 0;
      for (int64_t m = 0; m < 3; ++m) {
        EXPECT_EQ(engine.IsGradientAccumulationBoundary(), m == 2);
        loss += engine.Forward(engine.NextBatch()) / 3;
        engine.Backward();
        EXPECT_EQ(engine.IsGradientAccumulationBoundary(), m == 2);
        const std::optional<StepResult> result = engine.Step();
        ASSERT_EQ(result.has_value(), m == 2);
        if (!result) continue;
        EXPECT_NEAR(result->loss, loss, 1e-12);
        EXPECT_EQ(result->loss, expected[0].steps[step].loss);
      }
    }
    EXPECT_EQ(ParamsHere(engine), expected[0].params);
  });
}

TEST(EngineTest, CallsOutOfTurnAreRefused) {
  const Model model = TinyMlp();
  const std::vector<int32_t> tokens(12 * kSeqLen, 1);
  const Batch batch = {.B = 12, .T = kSeqLen, .tokens = tokens.data(), .targets = tokens.data()};
  RunRanks(1, [&](ProcessGroup& group) {
    TestDevice device(group);
    Engine engine(device.For(model, nullptr, kSeqLen), TinyConfig(0, 1, 1), 7);
    EXPECT_THROW(engine.Backward(), Error);
    EXPECT_THROW(engine.Step(), Error);
    EXPECT_THAT(ErrorOf([&] { engine.TrainBatch(); }).what(),
                testing::HasSubstr("has no data set"));
    engine.Forward(batch);
    EXPECT_THROW(engine.Forward(batch), Error);
    EXPECT_THROW(engine.Step(), Error);
    engine.Backward();
    EXPECT_THROW(engine.Backward(), Error);
    EXPECT_TRUE(engine.Step().has_value());
  });
}

TEST(EngineTest, NothingElseIsDoneInTheMiddleOfAStep) {
  const Model model = TinyGpt2();
  const auto data = Synthetic();
  for (int stage = 0; stage <= 3; ++stage) {
    DsConfig config = TinyConfig(stage, 2, 2);
    config.zero.overlap_comm = true;
    config.zero.gather_16bit_weights_on_model_save = true;
    RunRanks(2, [&](ProcessGroup& group) {
      const TempFolder folder;  // Each rank has one: nothing is saved.
      TestDevice device(group);
      Engine engine(device.For(model, data.get(), kSeqLen), config, 7);
      const auto expect_refusals = [&] {
        const std::vector<int32_t> tokens(kSeqLen, 1);
        const Batch batch = {.B = 1, .T = kSeqLen, .tokens = tokens.data()};
        for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
                 [&] { engine.Evaluate(*data, 1); }, [&] { engine.EvaluateSamples(*data, 1); },
                 [&] { engine.Predict(batch); }, [&] { engine.SaveCheckpoint(folder.path()); },
                 [&] { engine.BeginCheckpoint(folder.path()); },
                 [&] { engine.LoadCheckpoint(folder.path()); },
                 [&] { engine.Save16BitModel(folder.path()); }, [&] { engine.TrainBatch(); }}) {
          const Error error = ErrorOf(call);
          EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
          EXPECT_THAT(error.what(), testing::HasSubstr(": a step is under way; expected Forward"));
        }
      };
      for (const bool is_last : {false, true}) {
        engine.Forward(engine.NextBatch());
        expect_refusals();
        engine.Backward();
        expect_refusals();
        EXPECT_EQ(engine.Step().has_value(), is_last);
        if (!is_last) expect_refusals();
      }
      EXPECT_GT(engine.Evaluate(*data, 1), 0);
    });
  }
}

TEST(EngineTest, ABatchThatDoesNotFitTheModelIsRefused) {
  const Model model = TinyMlp();
  const DsConfig config = TinyConfig(0, 1, 1);
  OnEngines(model, config, 1, [&](Engine& engine, ProcessGroup&) {
    const int64_t B = config.batch.micro_batch_size;
    std::vector<int32_t> tokens(B * kSeqLen, 1), targets = tokens;
    const auto refusal = [&](const Batch& batch) {
      return std::string(ErrorOf([&] { engine.Forward(batch); }).what());
    };
    const Batch good = {.B = B, .T = kSeqLen, .tokens = tokens.data(), .targets = targets.data()};
    Batch batch = good;
    batch.B = 0;
    EXPECT_THAT(refusal(batch), testing::HasSubstr("0 rows of length"));
    batch = good;
    batch.targets = nullptr;
    EXPECT_THAT(refusal(batch), testing::HasSubstr("has no targets"));
    targets[3] = -1;  // Only -100 says that a position does not count.
    EXPECT_THAT(refusal(good), testing::HasSubstr("batch: target 3 is -1; expected one in [0, "));
    targets[3] = 1;
    tokens[2] = static_cast<int32_t>(model.vocab_size);
    EXPECT_THAT(refusal(good), testing::HasSubstr("batch: token 2 is "));
    EXPECT_THROW(engine.Predict(good), Error);
    tokens[2] = 1;
    EXPECT_GT(engine.Forward(good), 0);
  });
}

TEST(EngineTest, WithoutASchedulerTheLearningRateIsTheCallers) {
  const Model model = TinyMlp();
  DsConfig config = TinyConfig(0, 1, 1);
  OnEngines(model, config, 1, [&](Engine& own, ProcessGroup&) {
    own.set_lr(0.125);
    EXPECT_EQ(own.TrainBatch().lr, 0.125);
    EXPECT_THAT(ErrorOf([&] { own.set_lr(std::nan("")); }).what(),
                testing::HasSubstr("expected a number"));
    EXPECT_THROW(own.set_lr(-1), Error);
  });
  config.scheduler.type = "WarmupLR";
  config.scheduler.warmup_num_steps = 10;
  OnEngines(model, config, 1, [&](Engine& scheduled, ProcessGroup&) {
    scheduled.set_lr(0.125);
    EXPECT_EQ(scheduled.TrainBatch().lr, 0);
  });
}

std::unique_ptr<Dataset> HeldOut(int64_t num_samples) {
  return OpenValidationDataset({{"type", "synthetic"},
                                {"seq_len", kSeqLen},
                                {"vocab_size", 61},
                                {"validation", {{"samples", num_samples}}}},
                               "", 3, "/data");
}

TEST(EngineTest, EvaluationLeavesTrainingAsItIs) {
  const Model model = TinyGpt2();
  const auto data = Synthetic();
  const auto held_out = HeldOut(36);
  const std::vector<RankRun> expected = Train(model, TinyConfig(3, 2, 1), 2, 3);
  OnEngines(model, TinyConfig(3, 2, 1), 2, [&](Engine& engine, ProcessGroup&) {
    double before = 0;
    for (size_t step = 0; step < 3; ++step) {
      before = engine.Evaluate(*held_out, 3);
      EXPECT_EQ(engine.TrainBatch().loss, expected[0].steps[step].loss);
    }
    EXPECT_LT(engine.Evaluate(*held_out, 3), before);
    EXPECT_THROW(engine.Evaluate(*held_out, 4), Error);
    EXPECT_THROW(engine.Evaluate(*held_out, 0), Error);
  });
}

TEST(EngineTest, TheLossOverAllSamplesDoesNotDependOnTheBatch) {
  const Model model = TinyGpt2();
  const auto data = Synthetic();
  const auto held_out = HeldOut(37);
  std::vector<double> losses;
  for (const auto& [ranks, micro_batch, accumulation] :
       {std::array{1, 1, 1}, {2, 3, 2}, {3, 2, 1}, {2, 8, 4}}) {  // 37, 3, 6 and no whole batches.
    DsConfig config = TinyConfig(0, 1, 1);
    config.batch = {ranks * micro_batch * accumulation, micro_batch, accumulation};
    OnEngines(model, config, ranks, [&](Engine& engine, ProcessGroup& group) {
      const double loss = engine.EvaluateSamples(*held_out, 37);
      if (group.rank() == 0) losses.push_back(loss);
      EXPECT_THROW(engine.EvaluateSamples(*held_out, 38), Error);
    });
  }
  for (const double loss : losses)
    EXPECT_NEAR(loss, losses[0], 1e-6);
}

TEST(EngineTest, ALearningRateThatWasSetIsInTheCheckpoint) {
  const Model model = TinyGpt2();
  const TempFolder folder;
  OnEngines(model, TinyConfig(0, 1, 1), 1, [&](Engine& engine, ProcessGroup&) {
    engine.set_lr(0.125);
    const Error error = ErrorOf([&] {
      engine.SaveCheckpoint(folder.path(), "", {{"best", INFINITY}});
    });
    EXPECT_EQ(std::string(error.what()).substr(0, 29), "client_state: {\"best\":null}: ");
    engine.SaveCheckpoint(folder.path());
  });
  OnEngines(model, TinyConfig(0, 1, 1), 1, [&](Engine& again, ProcessGroup&) {
    const double own = again.lr();
    again.SaveCheckpoint(folder.path(), "not set");
    again.LoadCheckpoint(folder.path(), "global_step0");
    EXPECT_EQ(again.lr(), 0.125);
    again.LoadCheckpoint(folder.path(), "not set");
    EXPECT_EQ(again.lr(), own);
  });
}

TEST(EngineTest, MomentsOfAnotherOptimizerAreRefused) {
  const Model model = TinyGpt2();
  const TempFolder folder;
  DsConfig config = TinyConfig(0, 1, 1);
  OnEngines(model, config, 1,
            [&](Engine& engine, ProcessGroup&) { engine.SaveCheckpoint(folder.path()); });
  for (const std::string type : {"adam", "adagrad", "lion", "lamb", "sgd"}) {
    config.optimizer.type = type;
    OnEngines(model, config, 1, [&](Engine& other, ProcessGroup&) {
      if (type == "adam" || type == "sgd") {  // The same moments, or none without momentum.
        EXPECT_NO_THROW(other.LoadCheckpoint(folder.path())) << type;
      } else {
        EXPECT_THROW(other.LoadCheckpoint(folder.path()), Error) << type;
      }
    });
  }
}

TEST(EngineTest, ATrainingThatContinuesWithAnotherBatchReadsTheNextSample) {
  const Model model = TinyGpt2();
  const auto data = Synthetic();
  const TempFolder folder;
  const DsConfig one = TinyConfig(0, 1, 1);
  const int64_t batch = one.batch.train_batch_size;
  DsConfig two = one;
  two.batch.accumulation_steps = 2;
  two.batch.train_batch_size = 2 * batch;
  OnEngines(model, one, 1, [&](Engine& engine, ProcessGroup&) {
    for (int step = 0; step < 3; ++step)
      engine.TrainBatch();
    EXPECT_EQ(engine.num_samples(), 3 * batch);
    engine.SaveCheckpoint(folder.path());
  });
  OnEngines(model, two, 1, [&](Engine& engine, ProcessGroup&) {
    engine.LoadCheckpoint(folder.path());
    EXPECT_EQ(engine.num_samples(), 3 * batch);
    std::vector<int32_t> tokens(kSeqLen), targets(kSeqLen);
    data->Sample(3 * batch, kSeqLen, tokens.data(), targets.data());
    EXPECT_EQ(std::memcmp(engine.NextBatch().tokens, tokens.data(), kSeqLen * sizeof(int32_t)), 0);
    engine.TrainBatch();
    EXPECT_EQ(engine.num_samples(), 5 * batch);
  });
}

// A layer that is not trained keeps its bits, and has neither gradients nor optimizer state.
TEST(EngineTest, FrozenLayersStayAndCostNoState) {
  const Model all = Gpt2(2, 24, 61), frozen = Gpt2(2, 24, 61, {"wte*", "wpe*", "h.0.*"});
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const DsConfig config = TinyConfig(stage, 2, 2);
    const std::vector<RankRun> before = Train(frozen, config, 2, 0);
    const std::vector<RankRun> after = Train(frozen, config, 2, 2);
    for (const int u : {0, 1})
      EXPECT_EQ(after[0].params[static_cast<size_t>(u)], before[0].params[static_cast<size_t>(u)]);
    EXPECT_NE(after[0].params[2], before[0].params[2]);
    EXPECT_LT(after[0].state_bytes, Train(all, config, 2, 2)[0].state_bytes);
  }
}

}  // namespace
}  // namespace dsat::engine
