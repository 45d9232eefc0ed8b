// Finds the simplest causes that agree with what has run.
#include "methods/auto_failures.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace dsat {

std::vector<AutoFailures::Value> AutoFailures::ValuesOf(const AutoConfig& config) {
  const AutoKnobs& knobs = config.knobs;
  std::vector<Value> values;
  const auto add = [&values](double value) { values.emplace_back(values.size(), value); };
  add(static_cast<double>(config.place));
  add(config.stage);
  for (const double value : {knobs.reduce_bucket, knobs.allgather_bucket})
    add(value);
  for (const bool value : {knobs.overlap, knobs.reduce_scatter, knobs.contiguous})
    add(value ? 1 : 0);
  for (const std::vector<int>* indices : {&knobs.wide, &knobs.others}) {
    for (const int index : *indices)
      add(index);
  }
  return values;
}

void AutoFailures::Ran(const AutoConfig& config) {
  ran_.push_back(config);
  if (!failed_.empty()) FindCauses();
}

void AutoFailures::Failed(const AutoConfig& config) {
  failed_.push_back(config);
  FindCauses();
}

void AutoFailures::FindCauses() {
  std::set<Value> good;
  std::set<std::pair<Value, Value>> good_pairs;
  for (const AutoConfig& config : ran_) {
    const std::vector<Value> values = ValuesOf(config);
    good.insert(values.begin(), values.end());
    for (size_t i = 1; i < values.size(); ++i)
      good_pairs.emplace(values[0], values[i]);
  }
  single_.clear();
  pairs_.clear();
  sizes_.clear();
  for (const AutoConfig& config : failed_) {
    const std::vector<Value> values = ValuesOf(config);
    bool is_found = false;
    for (const Value& value : values) {
      if (good.contains(value)) continue;
      ++single_[value];
      is_found = true;
    }
    if (is_found) continue;
    for (size_t i = 1; i < values.size(); ++i) {
      if (good_pairs.contains({values[0], values[i]})) continue;
      ++pairs_[{values[0], values[i]}];
      is_found = true;
    }
    if (!is_found) sizes_.push_back(config);
  }
}

double AutoFailures::ProbabilityRuns(const AutoConfig& config) const {
  if (failed_.empty()) return 1;
  const std::vector<Value> values = ValuesOf(config);
  int most = 0;
  for (const Value& value : values) {
    const auto found = single_.find(value);
    if (found != single_.end()) most = std::max(most, found->second);
  }
  for (const auto& [pair, count] : pairs_) {
    const auto has = [&values](const Value& value) {
      return value.first < values.size() && values[value.first] == value;
    };
    if (has(pair.first) && has(pair.second)) most = std::max(most, count);
  }
  const auto larger = std::ranges::count_if(sizes_, [&](const AutoConfig& failed) {
    return failed.place == config.place && failed.micro_batch <= config.micro_batch;
  });
  return std::pow(0.5, std::max(most, static_cast<int>(larger)));
}

}  // namespace dsat
