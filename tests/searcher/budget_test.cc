// Tests when budgets end a search.
#include "searcher/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/searcher/search/simulated_device.h"
#include "tests/searcher/search/simulated_trials.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

// An experiment whose profiling trial has taken 10 s on its two slots.
class BudgetTest : public ::testing::Test {
 protected:
  Experiment Profiled(int64_t confirm_rounds, std::optional<double> max_time_s,
                      std::optional<double> max_device_hours = std::nullopt) {
    ExperimentSpec spec = SearchSpec("random", 6);
    spec.slots_per_trial = 2;
    spec.options.confirm_rounds = confirm_rounds;
    spec.options.max_time_s = max_time_s;
    spec.options.max_device_hours = max_device_hours;
    Experiment experiment = Experiment::Create(store_, spec);
    const TrialId profile = experiment.Ask().value().id;
    const int64_t attempt = experiment.StartAttempt(profile, "/logs");
    experiment.RecordMeasured(profile, attempt, std::nullopt, SampleProfile());
    experiment.EndAttempt(profile, attempt, {TrialState::kSucceeded, ""}, "");
    experiment.Tell(profile, {TrialState::kSucceeded, ""}, {.started_s = 1, .ended_s = 11});
    return experiment;
  }

  // The submitted configuration and `others` have taken 10 s each.
  Experiment Measured(int64_t others, int64_t confirm_rounds, std::optional<double> max_time_s,
                      std::optional<double> max_device_hours = std::nullopt) {
    Experiment experiment = Profiled(confirm_rounds, max_time_s, max_device_hours);
    for (int64_t i = 0; i <= others; ++i) {
      const TrialId trial = experiment.Ask().value().id;
      const int64_t attempt = experiment.StartAttempt(trial, "/logs");
      experiment.RecordMeasured(trial, attempt, SamplePoint(10, 2), std::nullopt);
      experiment.EndAttempt(trial, attempt, {TrialState::kSucceeded, ""}, "");
      const double start_s = 11 + 10 * static_cast<double>(i);
      experiment.Tell(trial, {TrialState::kSucceeded, ""},
                      {.started_s = start_s, .ended_s = start_s + 10});
    }
    return experiment;
  }

  Store store_ = Store::InMemory();
};

TEST_F(BudgetTest, WithoutAConfirmationTheSearchHasAllOfIt) {
  const Experiment experiment = Profiled(0, 300);
  EXPECT_EQ(WhySearchIsOver(experiment, {.clock_s = 299}), std::nullopt);
  EXPECT_EQ(WhySearchIsOver(experiment, {.clock_s = 300}),
            "--max-time: the search has run for 300 s");
}

TEST_F(BudgetTest, TheConfirmationHasTheTimeOfItsLaunches) {
  const Experiment experiment = Measured(3, 2, 300);  // Four arms, two rounds.
  EXPECT_EQ(WhySearchIsOver(experiment, {.clock_s = 219}), std::nullopt);
  EXPECT_EQ(WhySearchIsOver(experiment, {.clock_s = 220}),
            "--max-time: the search has run for 220 s, and its confirmation takes about 80 s");
}

TEST_F(BudgetTest, WhatWasMeasuredIsAllThatIsConfirmed) {
  EXPECT_EQ(WhySearchIsOver(Measured(0, 2, 60), {.clock_s = 49}), std::nullopt);
  EXPECT_EQ(WhySearchIsOver(Measured(0, 2, 60), {.clock_s = 50}),
            "--max-time: the search has run for 50 s, and a launch takes about 10 s");
  EXPECT_EQ(WhySearchIsOver(Measured(1, 2, 300), {.clock_s = 259}), std::nullopt);
  EXPECT_THAT(WhySearchIsOver(Measured(1, 2, 300), {.clock_s = 260}).value(),
              HasSubstr("about 40 s"));
}

TEST_F(BudgetTest, TheConfirmationHasAtMostHalfOfIt) {
  const Experiment experiment = Measured(3, 2, 100);
  EXPECT_EQ(WhySearchIsOver(experiment, {.clock_s = 49}), std::nullopt);
  EXPECT_THAT(WhySearchIsOver(experiment, {.clock_s = 50}).value(), HasSubstr("about 80 s"));
}

TEST_F(BudgetTest, NothingIsKeptForAConfirmationBeforeAnythingWasMeasured) {
  const Experiment experiment = Profiled(2, 20);  // The profiling trial has had half of it.
  EXPECT_EQ(WhySearchIsOver(experiment, {.clock_s = 19}), std::nullopt);
  EXPECT_EQ(WhySearchIsOver(experiment, {.clock_s = 20}),
            "--max-time: the search has run for 20 s");
}

TEST_F(BudgetTest, ALimitThatHasEndedTheSearchLeavesRoomForFewerFinalists) {
  const auto num_arms = [](double max_time_s) {
    ExperimentSpec spec = SimulatedSpec("random");
    spec.options.confirm_rounds = 3;
    spec.options.max_time_s = max_time_s;
    Search search(spec);
    while (const std::optional<Trial> trial = search.Ask()) {
      const Ending end = Success(*trial, 100.0 + static_cast<double>(trial->id));
      search.Tell(trial->id, end.outcome, end.points, end.profile, {}, {1, 11});
      if (trial->id == 5) search.EndSearch("--max-time: over");
    }
    return search.confirmation()->Arms().size();
  };
  // Each of them takes 20 s to the first look, and 11 s are over.
  EXPECT_EQ(num_arms(91), 4);
  EXPECT_EQ(num_arms(90), 3);
  EXPECT_EQ(num_arms(52), 2);
}

TEST_F(BudgetTest, AScriptThatFailsTwiceAlikeEndsTheSearchWhicheverLaunchAndRankFailsFirst) {
  const auto after = [&](const std::vector<std::vector<std::string>>& reasons_of_trials) {
    Experiment experiment = Profiled(0, std::nullopt);
    for (const std::vector<std::string>& reasons : reasons_of_trials) {
      const TrialId id = experiment.Ask().value().id;
      for (const std::string& reason : reasons) {
        const int64_t attempt = experiment.StartAttempt(id, "/logs");
        experiment.EndAttempt(id, attempt, {TrialState::kFailed, reason}, "");
      }
      experiment.Tell(id, {TrialState::kFailed, reasons.back()});
    }
    return WhySearchIsOver(experiment, {}).has_value();
  };
  const std::string first = "rank 0 exited with code 1: [rank0]: ValueError: sample 17";
  const std::string second = "rank 1 exited with code 1: [rank1]: ValueError: sample 17";
  const std::string other = "rank 1 exited with code 1: [rank1]: ValueError: sample 18";
  EXPECT_TRUE(after({{first, second}}));
  EXPECT_FALSE(after({{first, other}}));
  // Without restarts the next trial tells.
  EXPECT_FALSE(after({{first}}));
  EXPECT_TRUE(after({{first}, {second}}));
  EXPECT_FALSE(after({{first}, {other}}));
  EXPECT_TRUE(after({{"/o/trials/1/attempt0/metrics.json: \"fwd\" is missing"},
                     {"/o/trials/2/attempt1/metrics.json: \"fwd\" is missing"}}));
}

TEST_F(BudgetTest, ASearchThatOtherConfigurationsCanGoOnWithDoesNotEnd) {
  Experiment experiment = Profiled(0, std::nullopt);
  const auto launch = [&](TrialId id, const Outcome& end) {
    experiment.EndAttempt(id, experiment.StartAttempt(id, "/logs"), end, "");
  };
  const Outcome crash{TrialState::kFailed, "exit code 1"};
  const TrialId submitted = experiment.Ask().value().id, other = experiment.Ask().value().id;
  for (int i = 0; i < 2; ++i)
    launch(submitted, crash);
  experiment.Tell(submitted, crash);
  EXPECT_FALSE(WhySearchIsOver(experiment, {}));  // The other one runs beside it.
  const int64_t attempt = experiment.StartAttempt(other, "/logs");
  experiment.RecordMeasured(other, attempt, SamplePoint(10, 2), std::nullopt);
  experiment.EndAttempt(other, attempt, {TrialState::kSucceeded, ""}, "");
  experiment.Tell(other, {TrialState::kSucceeded, ""});
  EXPECT_FALSE(WhySearchIsOver(experiment, {}));
}

TEST_F(BudgetTest, TrialsThatNeverMeasureTheMetricEndTheSearch) {
  Experiment experiment = Profiled(0, std::nullopt);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(WhySearchIsOver(experiment, {}));
    const TrialId id = experiment.Ask().value().id;
    const int64_t attempt = experiment.StartAttempt(id, "/logs");
    const PointResult point{.point = {.micro_batch_size = 2},
                            .measurement = {{"latency", {.value = 1, .samples = 1}}}};
    experiment.RecordMeasured(id, attempt, point, std::nullopt);
    experiment.EndAttempt(id, attempt, {TrialState::kSucceeded, ""}, "");
    experiment.Tell(id, {TrialState::kSucceeded, ""});
  }
  EXPECT_THAT(WhySearchIsOver(experiment, {}).value_or(""),
              HasSubstr("the trial ended without measuring"));
}

TEST_F(BudgetTest, DeviceHoursCountSlots) {
  const Experiment experiment = Measured(3, 2, std::nullopt, 600.0 / 3600);
  EXPECT_EQ(WhySearchIsOver(experiment, {.clock_s = 9999, .slot_seconds = 439}), std::nullopt);
  EXPECT_THAT(WhySearchIsOver(experiment, {.slot_seconds = 440}).value(),
              HasSubstr("--max-device-hours: trials have used 0.122 hours, and its confirmation"));
}

}  // namespace
}  // namespace dsat
