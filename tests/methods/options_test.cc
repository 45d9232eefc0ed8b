// Tests every option at and beyond its limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "methods/methods.h"
#include "tests/base/error_code.h"

namespace dsat {
namespace {

struct BadOption {
  std::string flag;
  std::function<void(SearchOptions&)> spoil;
};

TEST(OptionsTest, TheDefaultsAreValid) {
  EXPECT_NO_THROW(ValidateOptions(SearchOptions()));
}

TEST(OptionsTest, TheLeastAllowedValuesAreValid) {
  SearchOptions options;
  options.max_trials = 2;
  options.max_concurrent_trials = 1;
  options.max_slots = 1;
  options.zero_stages = {0};
  options.start_profile_step = 0;
  options.end_profile_step = 0;
  options.random.trials_per_random_config = 1;
  options.random.early_stopping = 1;
  options.lineages.search_range_factor = 0.01;
  options.asha.max_rungs = 1;
  options.asha.min_binary_search_trials = 1;
  options.asha.asha_early_stopping = 0;
  options.asha.divisor = 2;
  EXPECT_NO_THROW(ValidateOptions(options));
}

TEST(OptionsTest, EveryBadValueIsRefusedByItsFlag) {
  const std::vector<BadOption> cases = {
      {"--max-trials: 1", [](SearchOptions& o) { o.max_trials = 1; }},
      {"--max-concurrent-trials: 0", [](SearchOptions& o) { o.max_concurrent_trials = 0; }},
      {"--max-slots: 0", [](SearchOptions& o) { o.max_slots = 0; }},
      {"--metric: \"speed\"", [](SearchOptions& o) { o.metric = "speed"; }},
      {"--metric: \"loss\"", [](SearchOptions& o) { o.metric = "loss"; }},
      {"--zero-stages: none", [](SearchOptions& o) { o.zero_stages = {}; }},
      {"--zero-stages: 4",
       [](SearchOptions& o) {
         o.zero_stages = {1, 4};
       }},
      {"--zero-stages: -1", [](SearchOptions& o) { o.zero_stages = {-1}; }},
      {"--zero-stages: 2 is given twice",
       [](SearchOptions& o) {
         o.zero_stages = {2, 1, 2};
       }},
      {"--start-profile-step: -1", [](SearchOptions& o) { o.start_profile_step = -1; }},
      {"--end-profile-step: 2", [](SearchOptions& o) { o.end_profile_step = 2; }},
      {"--space: \"all\"", [](SearchOptions& o) { o.space = "all"; }},
      {"--space: \"wide\"",
       [](SearchOptions& o) {
         o.space = "wide";
         o.compat_determined = true;
       }},
      {"--train-batch-size: 0", [](SearchOptions& o) { o.train_batch_size = 0; }},
      {"--divisible-by: 0", [](SearchOptions& o) { o.divisible_by = 0; }},
      {"--loss-pattern: \"loss\" has no group", [](SearchOptions& o) { o.loss_pattern = "loss"; }},
      {"--loss-pattern: \"loss (\" is no regular expression (missing )",
       [](SearchOptions& o) { o.loss_pattern = "loss ("; }},
      {"--loss-pattern: \"(l)\\1\" is no regular",
       [](SearchOptions& o) { o.loss_pattern = "(l)\\1"; }},
      {"--confirm: -1", [](SearchOptions& o) { o.confirm_rounds = -1; }},
      {"--max-time: 0", [](SearchOptions& o) { o.max_time_s = 0; }},
      {"--max-device-hours: inf",
       [](SearchOptions& o) { o.max_device_hours = std::numeric_limits<double>::infinity(); }},
      {"--run-steps: 0", [](SearchOptions& o) { o.auto_method.run_steps = 0; }},
      {"--trials-per-random-config: 0",
       [](SearchOptions& o) { o.random.trials_per_random_config = 0; }},
      {"--early-stopping: 0", [](SearchOptions& o) { o.random.early_stopping = 0; }},
      {"--search-range-factor: 0", [](SearchOptions& o) { o.lineages.search_range_factor = 0; }},
      {"--search-range-factor: nan",
       [](SearchOptions& o) {
         o.lineages.search_range_factor = std::numeric_limits<double>::quiet_NaN();
       }},
      {"--max-rungs: 0", [](SearchOptions& o) { o.asha.max_rungs = 0; }},
      {"--min-binary-search-trials: 0",
       [](SearchOptions& o) { o.asha.min_binary_search_trials = 0; }},
      {"--asha-early-stopping: -1", [](SearchOptions& o) { o.asha.asha_early_stopping = -1; }},
      // Numbers to which others are added.
      {"--asha-early-stopping: 65", [](SearchOptions& o) { o.asha.asha_early_stopping = 65; }},
      {"--end-profile-step: 9223372036854775807",
       [](SearchOptions& o) { o.end_profile_step = INT64_MAX; }},
      {"--soak: 9223372036854775807", [](SearchOptions& o) { o.soak_steps = INT64_MAX; }},
      {"--divisor: 1", [](SearchOptions& o) { o.asha.divisor = 1; }},
  };
  for (const BadOption& bad : cases) {
    SearchOptions options;
    bad.spoil(options);
    EXPECT_THAT(RefusalOf([&] { ValidateOptions(options); }),
                testing::AllOf(testing::StartsWith(bad.flag), testing::HasSubstr("expected")));
  }
}

}  // namespace
}  // namespace dsat
