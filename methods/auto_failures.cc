// Finds the simplest causes that agree with what has run.
#include "methods/auto_failures.h"

#include <algorithm>
#include <cmath>

namespace dsat {
namespace {

// The keys that values belong to. From kFirstWide on, they are the same ones at all places; those
// from kFirstOwn on say something at their own place only.
constexpr int64_t kPlaceId = 0, kStageId = 1, kFirstNamed = 2, kFirstWide = 100, kFirstOwn = 10'000;

}  // namespace

std::vector<AutoFailures::Value> AutoFailures::ValuesOf(const AutoConfig& config) {
  const AutoKnobs& knobs = config.knobs;
  std::vector<Value> values = {{kPlaceId, config.place}, {kStageId, config.stage}};
  int64_t key = kFirstNamed;
  for (const double value : {knobs.reduce_bucket, knobs.allgather_bucket, knobs.overlap ? 1. : 0.,
                             knobs.reduce_scatter ? 1. : 0., knobs.contiguous ? 1. : 0.})
    values.emplace_back(key++, value);
  for (const auto& [first, indices] :
       {std::pair(kFirstWide, &knobs.wide), {kFirstOwn, &knobs.others}}) {
    for (int64_t i = 0; i < std::ssize(*indices); ++i)
      if ((*indices)[i] >= 0) values.emplace_back(first + i, (*indices)[i]);
  }
  return values;
}

void AutoFailures::Ran(const AutoConfig& config) {
  ran_.push_back(config);
  const std::vector<Value> values = ValuesOf(config);
  good_.insert(values.begin(), values.end());
  for (const Value& value : values)
    good_pairs_.emplace(values[0], value);
  int64_t& largest = largest_[config.place];
  largest = std::max(largest, config.micro_batch);
  if (!failed_.empty()) FindCauses();
}

void AutoFailures::Failed(const AutoConfig& config) {
  failed_.push_back(config);
  FindCauses();
}

void AutoFailures::FindCauses() {
  single_.clear();
  pairs_.clear();
  sizes_.clear();
  for (const AutoConfig& config : failed_) {
    const std::vector<Value> values = ValuesOf(config);
    bool is_found = false;
    for (const Value& value : values) {
      if (value.first >= kFirstOwn || good_.contains(value)) continue;
      ++single_[value];
      is_found = true;
    }
    if (is_found) continue;
    for (const Value& value : values) {
      if (good_pairs_.contains({values[0], value})) continue;
      ++pairs_[{values[0], value}];
      is_found = true;
    }
    // A configuration that has run with the same knobs fails by chance.
    const auto has_run = [&](const AutoConfig& ran) {
      return ran.place == config.place && ran.micro_batch >= config.micro_batch &&
             ran.knobs == config.knobs;
    };
    if (!is_found && std::ranges::none_of(ran_, has_run)) sizes_.push_back(config);
  }
}

double AutoFailures::ProbabilityRuns(const AutoConfig& config) const {
  if (failed_.empty() || ran_.empty()) return 1;
  int64_t most = 0;
  const std::vector<Value> values = ValuesOf(config);
  for (const Value& value : values) {
    if (const auto found = single_.find(value); found != single_.end())
      most = std::max(most, found->second);
    if (const auto found = pairs_.find({values[0], value}); found != pairs_.end())
      most = std::max(most, found->second);
  }
  const int64_t smaller = std::ranges::count_if(sizes_, [&](const AutoConfig& failed) {
    return failed.place == config.place && failed.micro_batch <= config.micro_batch;
  });
  const auto largest = largest_.find(config.place);
  const bool fits = largest != largest_.end() && largest->second >= config.micro_batch;
  return std::pow(0.5, std::max(most, fits ? 0 : smaller));
}

}  // namespace dsat
