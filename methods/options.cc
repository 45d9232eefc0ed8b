// Errors name the options of the command line, which have the names of the fields of SearchOptions.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "base/error.h"
#include "base/regex.h"
#include "methods/methods.h"

namespace dsat {
namespace {

constexpr int64_t kNoLimit = INT64_MAX;

void CheckRange(const std::string& flag, int64_t value, int64_t least, int64_t most = kNoLimit) {
  if (value >= least && value <= most) return;
  const std::string range =
      most == kNoLimit ? fmt::format("{} or more", least) : fmt::format("{} to {}", least, most);
  Throw(ErrorCode::kInvalidArgument, "{}: {} is out of range; expected {}", flag, value, range);
}

void CheckPositive(const std::string& flag, const std::optional<double>& value) {
  if (!value || (*value > 0 && std::isfinite(*value))) return;
  Throw(ErrorCode::kInvalidArgument, "{}: {} is out of range; expected more than 0", flag, *value);
}

void CheckMetric(const std::string& metric) {
  const std::vector<std::string>& known = SearchMetrics();
  if (std::find(known.begin(), known.end(), metric) != known.end()) return;
  Throw(ErrorCode::kInvalidArgument, "--metric: \"{}\" is not a metric; expected one of {}", metric,
        fmt::join(known, ", "));
}

void CheckStages(const std::vector<int>& stages) {
  if (stages.empty()) {
    Throw(ErrorCode::kInvalidArgument, "--zero-stages: none given; expected some of 0 1 2 3");
  }
  std::set<int> seen;
  for (const int stage : stages) {
    CheckRange("--zero-stages", stage, 0, 3);
    if (!seen.insert(stage).second) {
      Throw(ErrorCode::kInvalidArgument, "--zero-stages: {} is given twice; expected each once",
            stage);
    }
  }
}

void CheckLossPattern(const std::string& pattern) {
  const auto fail = [&](const std::string& what) {
    Throw(ErrorCode::kInvalidArgument,
          "--loss-pattern: \"{}\" {}; expected a regular expression (of RE2) whose first group "
          "matches the loss, such as \"loss: ([0-9.]+)\"",
          pattern, what);
  };
  if (pattern.empty()) return;
  const RE2 regex(pattern, RegexOptions());
  if (!regex.ok()) fail(fmt::format("is no regular expression ({})", regex.error()));
  if (regex.NumberOfCapturingGroups() < 1) fail("has no group");
}

void CheckSpace(const SearchOptions& options) {
  if (options.space != "published" && options.space != "wide") {
    Throw(ErrorCode::kInvalidArgument, "--space: \"{}\" is no space; expected published or wide",
          options.space);
  }
  if (options.space == "wide" && options.compat_determined) {
    Throw(ErrorCode::kInvalidArgument,
          "--space: \"wide\" was not published; expected published with --compat determined");
  }
  if (options.allow_semantic && options.compat_determined) {
    Throw(ErrorCode::kInvalidArgument,
          "--allow: \"semantic\" keys were not searched in the published space; leave --allow out "
          "with --compat determined");
  }
}

}  // namespace

void ValidateOptions(const SearchOptions& options) {
  CheckRange("--max-trials", options.max_trials, 2);  // The profiling trial and one to compare.
  CheckRange("--max-concurrent-trials", options.max_concurrent_trials, 1);
  if (options.max_slots) CheckRange("--max-slots", *options.max_slots, 1);
  CheckMetric(options.metric);
  CheckStages(options.zero_stages);
  CheckSpace(options);
  constexpr int64_t kMostSteps = 1'000'000'000;  // Further ones are added to them.
  CheckRange("--start-profile-step", options.start_profile_step, 0, kMostSteps);
  CheckRange("--end-profile-step", options.end_profile_step, options.start_profile_step,
             kMostSteps);
  if (options.train_batch_size) CheckRange("--train-batch-size", *options.train_batch_size, 1);
  CheckRange("--divisible-by", options.divisible_by, 1);
  constexpr int64_t kMostRounds = 100;
  CheckRange("--confirm", options.confirm_rounds, 0, kMostRounds);
  CheckRange("--soak", options.soak_steps, 0, kMostSteps);
  CheckLossPattern(options.loss_pattern);
  CheckPositive("--max-time", options.max_time_s);
  CheckPositive("--max-device-hours", options.max_device_hours);
  if (options.auto_method.run_steps) CheckRange("--run-steps", *options.auto_method.run_steps, 1);
  CheckRange("--trials-per-random-config", options.random.trials_per_random_config, 1);
  if (options.random.early_stopping)
    CheckRange("--early-stopping", *options.random.early_stopping, 1);
  constexpr double kLargestFactor = 1000;
  if (!(options.lineages.search_range_factor > 0 &&
        options.lineages.search_range_factor <= kLargestFactor)) {
    Throw(ErrorCode::kInvalidArgument,
          "--search-range-factor: {} is out of range; expected more than 0, at most {}",
          options.lineages.search_range_factor, kLargestFactor);
  }
  constexpr int64_t kMostRungs = 64;
  CheckRange("--max-rungs", options.asha.max_rungs, 1, kMostRungs);
  CheckRange("--min-binary-search-trials", options.asha.min_binary_search_trials, 1);
  CheckRange("--asha-early-stopping", options.asha.asha_early_stopping, 0, kMostRungs);
  CheckRange("--divisor", options.asha.divisor, 2);
}

}  // namespace dsat
