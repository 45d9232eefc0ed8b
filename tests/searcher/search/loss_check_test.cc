// How often the comparison of losses is right: on real trainings with and without a defect, and on
// noise whose distribution is known.
#include "searcher/search/loss_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/rng.h"
#include "tests/sanitizers.h"
#include "tests/searcher/search/defective_training.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;
using Result = LossCheck::Result;

constexpr LossLimits kSingle{.unit_roundoff = 0x1p-24};

// The losses of a training that learns.
LossCurve Falling(int num_steps = 10, double rate = 0.05) {
  LossCurve curve;
  for (int i = 0; i < num_steps; ++i)
    curve.push_back(5 * std::exp(-rate * i) + 0.1 * (i % 3));
  return curve;
}

LossCurve Scaled(LossCurve curve, double factor) {
  for (double& loss : curve)
    loss *= factor;
  return curve;
}

TEST(CompareLossesTest, EqualCurvesAreAlikeAndOthersAreNot) {
  const LossCurve curve = Falling();
  const LossCheck same = CompareLosses({curve, curve}, curve, kSingle);
  EXPECT_EQ(same.result, Result::kAlike);
  EXPECT_EQ(same.num_steps, 10);
  EXPECT_EQ(same.num_runs, 2);
  EXPECT_EQ(same.difference, 0);
  const LossCheck other = CompareLosses({curve, curve}, Scaled(curve, 1.001), kSingle);
  EXPECT_EQ(other.result, Result::kDiffers);
  EXPECT_NEAR(other.difference, 1e-3, 2e-4);
  EXPECT_THAT(Describe(other), HasSubstr("differ by 0.1 %"));
  EXPECT_EQ(CompareLosses({curve, curve}, LossCurve(10, curve[0]), kSingle).result,
            Result::kDiffers);
}

TEST(CompareLossesTest, TheCommonStepsAreCompared) {
  LossCurve longer = Falling(50);
  for (size_t i = 10; i < longer.size(); ++i)
    longer[i] = 0;
  EXPECT_EQ(CompareLosses({Falling(10), Falling(12)}, longer, kSingle).result, Result::kAlike);
  EXPECT_EQ(CompareLosses({Falling(2), Falling(9)}, longer, kSingle).result, Result::kNotChecked);
  EXPECT_EQ(CompareLosses({Falling(9)}, longer, kSingle).result, Result::kNotChecked);
  EXPECT_EQ(CompareLosses({Falling(9), {}}, longer, kSingle).result, Result::kNotChecked);
}

TEST(CompareLossesTest, LossesThatAreNotFiniteDifferUnlessTheSubmittedOnesAreNotEither) {
  LossCurve broken = Falling(), once = Falling();
  for (size_t i = 4; i < broken.size(); ++i)
    broken[i] = std::numeric_limits<double>::quiet_NaN();
  once[3] = std::numeric_limits<double>::infinity();
  const LossCheck check = CompareLosses({Falling(), Falling()}, broken, kSingle);
  EXPECT_EQ(check.result, Result::kDiffers);
  EXPECT_THAT(Describe(check), HasSubstr("not finite"));
  EXPECT_EQ(CompareLosses({once, once}, once, kSingle).result, Result::kAlike);
  EXPECT_EQ(CompareLosses({broken, broken}, broken, kSingle).num_steps, 4);
}

TEST(CompareLossesTest, ASemanticChangeMayLearnABitLessButNotNothing) {
  const LossLimits limits{.unit_roundoff = 0x1p-24, .changes = engine::KeyClass::kSemantic};
  const std::vector<LossCurve> runs = {Falling(), Falling()};
  EXPECT_EQ(CompareLosses(runs, Falling(10, 0.04), limits).result, Result::kAlike);
  EXPECT_EQ(CompareLosses(runs, Falling(10, 0.09), limits).result, Result::kAlike);
  EXPECT_EQ(CompareLosses(runs, Falling(10, 0), limits).result, Result::kDiffers);
  LossCurve unread = Falling();  // Its first line shows no number.
  unread[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(CompareLosses(runs, unread, limits).result, Result::kAlike);
}

// As with dropout, whose random numbers depend on the split.
TEST(CompareLossesTest, NoiseThatWouldHideEverythingDecidesNothing) {
  const LossCurve curve = Falling(), flat(curve.size(), curve[0]);
  const LossCheck check = CompareLosses({Scaled(curve, 1.02), Scaled(curve, 0.98)}, flat, kSingle);
  EXPECT_EQ(check.result, Result::kNotChecked);
  EXPECT_THAT(Describe(check), HasSubstr("the losses of its 2 runs differ so much"));
}

TEST(CompareLossesTest, ADifferenceBeforeTheFirstUpdateIsNoDefectOfAScript) {
  LossCurve curve = Falling();
  for (size_t i = 0; i < curve.size(); ++i)
    curve[i] *= 1 + 0.01 * (i % 2 == 0 ? 1 : -1);
  const std::vector<LossCurve> runs = {Falling(), Falling()};
  const LossLimits script{.unit_roundoff = 0x1p-8, .random_by_split = true};
  EXPECT_EQ(CompareLosses(runs, curve, kSingle).result, Result::kDiffers);
  EXPECT_EQ(CompareLosses(runs, curve, script).result, Result::kAlike);
  EXPECT_TRUE(CompareLosses(runs, curve, script).only_learning);
  EXPECT_EQ(CompareLosses(runs, Falling(10, 0), script).result, Result::kDiffers);
}

TEST(CompareLossesTest, ACurveFarFromTheFirstLossIsNoRandomness) {
  const LossCurve falling = {5, 2.5, 1.7, 1.25, 1, 0.8};
  for (const bool semantic : {true, false}) {
    const LossLimits limits{
        .unit_roundoff = 0x1p-8,
        .changes = semantic ? engine::KeyClass::kSemantic : engine::KeyClass::kRounding,
        .random_by_split = true};
    for (const double first : {5.2, 6.0, 8.0, 100.0}) {
      const LossCurve flat(falling.size(), first);
      EXPECT_EQ(CompareLosses({falling, falling}, flat, limits).result, Result::kDiffers) << first;
    }
  }
}

// Runs that differ as those of a script without a seed: every step by itself, or the whole curve.
class NoiseTest : public ::testing::TestWithParam<bool> {
 protected:
  LossCurve Run(Rng& rng, double noise, double rate = 0.05) const {
    LossCurve curve = Falling(12, rate);
    const double all = rng.Normal();
    for (double& loss : curve)
      loss += noise * (GetParam() ? all : rng.Normal());
    return curve;
  }
};

INSTANTIATE_TEST_SUITE_P(Of, NoiseTest, ::testing::Bool());

TEST_P(NoiseTest, AtMostOneInAHundredRunsIsAFalseAlarm) {
  Rng rng(7, 0, "false alarms");
  for (const int num_runs : {2, 3, 4, 10}) {
    constexpr int kRepeats = 4000;
    int alarms = 0;
    for (int i = 0; i < kRepeats; ++i) {
      std::vector<LossCurve> runs;
      for (int r = 0; r < num_runs; ++r)
        runs.push_back(Run(rng, 0.03));
      alarms += CompareLosses(runs, Run(rng, 0.03), kSingle).result == Result::kDiffers ? 1 : 0;
    }
    EXPECT_LE(alarms, kRepeats / 100) << num_runs;
  }
}

TEST_P(NoiseTest, ARunThatLearnsNothingStandsOutOfTheNoise) {
  Rng rng(8, 0, "power");
  constexpr int kRepeats = 2000;
  int caught = 0;
  for (int i = 0; i < kRepeats; ++i) {
    std::vector<LossCurve> runs;
    for (int r = 0; r < 4; ++r)
      runs.push_back(Run(rng, 0.03));
    caught += CompareLosses(runs, Run(rng, 0.03, 0), kSingle).result == Result::kDiffers ? 1 : 0;
  }
  EXPECT_GE(caught, kRepeats * 99 / 100);
}

// Real trainings.

struct Rates {
  int alarms = 0;
  int clean = 0;
  std::map<engine::Defect, int> missed;
  int defective = 0;
};

// One submitted configuration, and what is compared with it.
void AddCase(engine::DType dtype, const std::string& optimizer, uint64_t seed, Rates& rates) {
  const engine::Model model = engine::TinyGpt2();
  const int world_size = seed % 2 == 0 ? 2 : 4;
  // From 1e-4 to 3e-3, and a hundred times as much for SGD.
  const double lr = 1e-4 * std::pow(30.0, static_cast<double>(seed % 7) / 6);
  const auto config_of = [&](int stage, int64_t accumulation_steps) {
    engine::DsConfig config = engine::TinyConfig(stage, world_size, accumulation_steps);
    SetPrecision(config, dtype);
    config.fp16.initial_scale_power = 10;
    config.optimizer.type = optimizer;
    config.optimizer.lr = optimizer == "sgd" ? 100 * lr : lr;
    config.optimizer.momentum = 0.9;
    config.zero.reduce_bucket_size = stage == 1 ? 3000 : 1'000'000;
    return config;
  };
  const LossLimits limits{.unit_roundoff = dtype == engine::DType::kF32    ? 0x1p-24
                                           : dtype == engine::DType::kBF16 ? 0x1p-8
                                                                           : 0x1p-11};
  engine::LossRun run{.config = config_of(0, 1), .world_size = world_size, .seed = seed};
  const std::vector<LossCurve> submitted = {LossesOf(model, run), LossesOf(model, run)};
  const auto check = [&] { return CompareLosses(submitted, LossesOf(model, run), limits); };
  for (const int stage : {1, 2, 3}) {
    run.config = config_of(stage, stage == 2 ? 1 : 3);
    const LossCheck clean = check();
    rates.alarms += clean.result == Result::kDiffers ? 1 : 0;
    ++rates.clean;
  }
  run.config = config_of(2, 3);
  for (const engine::Defect defect : engine::kDefects) {
    run.defect = defect;
    rates.missed[defect] += check().result == Result::kDiffers ? 0 : 1;
    ++rates.defective;
  }
}

TEST(LossCheckOfTrainingsTest, DefectsAreCaughtAndOtherConfigurationsAreNot) {
  const uint64_t num_seeds = IsSanitized() ? 2 : 20;
  Rates rates;
  for (const engine::DType dtype :
       {engine::DType::kF32, engine::DType::kBF16, engine::DType::kF16}) {
    for (const char* optimizer : {"adam", "sgd"}) {
      for (uint64_t seed = 1; seed <= num_seeds; ++seed)
        AddCase(dtype, optimizer, seed, rates);
    }
  }
  int missed = 0;
  for (const auto& [defect, count] : rates.missed)
    missed += count;
  EXPECT_LE(rates.alarms, rates.clean / 100) << "of " << rates.clean;
  EXPECT_LE(missed, rates.defective / 100)
      << "of " << rates.defective << ": "
      << ::testing::PrintToString(std::map<engine::Defect, int>(rates.missed));
  RecordProperty("alarms", rates.alarms);
  RecordProperty("missed", missed);
}

}  // namespace
}  // namespace dsat
