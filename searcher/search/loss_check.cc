// Medians over steps of differences, of noise and of what is learned.
#include "searcher/search/loss_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/statistics.h"
#include "engine/config/batch.h"
#include "engine/config/keys.h"
#include "engine/config/settings.h"
#include "searcher/search/config_change.h"
#include "searcher/search/search_state.h"

namespace dsat {
namespace {

constexpr size_t kLeastSteps = 3;
// The probability that noise alone exceeds its band.
constexpr double kFalseAlarms = 0.005;
// The least rounding error of sums in f32, as a part of the loss: many small updates add up to it.
constexpr double kLeastRounding = 1e-5;
// The most that rounding updates does, as a part of what is learned, in unit roundoffs. Another
// split of the batch of a script in bf16, with small updates, was seen to make a difference of 1.1.
constexpr double kRoundoffs = 2;
constexpr double kBf16Roundoff = 0x1p-8, kF16Roundoff = 0x1p-11, kF32Roundoff = 0x1p-24;
// The most that a semantic change may cost, as a part of what is learned.
constexpr double kSemanticPart = 0.5;
// Random numbers that differ may change the losses by twice as much as the first one, and by this
// part of it at most: another loss is another objective.
constexpr double kRandomPart = 0.1;
// Noise above this part of the loss that could also hide half of what is learned decides nothing.
constexpr double kMostNoise = 0.05;

// The submitted configuration at one step.
struct Step {
  size_t index = 0;
  double mean = 0;
  double deviation = 0;  // Between runs.
};

std::vector<Step> StepsOf(const std::vector<LossCurve>& runs, size_t num_steps) {
  std::vector<Step> steps;
  const auto num_runs = static_cast<double>(runs.size());
  for (size_t i = 0; i < num_steps; ++i) {
    Step step{.index = i};
    for (const LossCurve& run : runs)
      step.mean += run[i] / num_runs;
    double squares = 0;
    for (const LossCurve& run : runs)
      squares += (run[i] - step.mean) * (run[i] - step.mean);
    step.deviation = runs.size() == 1 ? 0 : std::sqrt(squares / (num_runs - 1));
    if (std::isfinite(step.mean) && std::isfinite(step.deviation)) steps.push_back(step);
  }
  return steps;
}

template <typename Value>
double MedianOver(const std::vector<Step>& steps, const Value& value) {
  std::vector<double> values;
  for (const Step& step : steps)
    values.push_back(value(step));
  const size_t middle = values.size() / 2;
  std::ranges::sort(values);
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

LossCheck NotChecked(std::string why) {
  LossCheck check;
  check.why = std::move(why);
  return check;
}

engine::KeyClass ClassOf(const std::string& pointer) {
  // How a batch is split is the order of its sums. Its size is equal where losses are compared.
  for (const char* key : {"/train_batch_size", kMicroBatchKey, kAccumulationKey})
    if (pointer == key) return engine::KeyClass::kRounding;
  const engine::Key* key = engine::Keys().Find(pointer);
  if (key == nullptr) return engine::KeyClass::kSemantic;
  if (key->type == engine::KeyType::kSection) return engine::KeyClass::kExact;  // An empty one.
  return engine::Keys().Target(*key).key_class;
}

// Fills in what one resolved config changes of another. A value that is written out is no change of
// the same default.
void AddChanges(const Json& from, const Json& to, LossCheck& check) {
  const engine::Settings was(from, "ds_config"), is(to, "ds_config");
  check.changes = engine::KeyClass::kExact;
  for (const std::string& pointer : ChangedKeys(from, to)) {
    if (was.ValueOrNull(pointer) == is.ValueOrNull(pointer)) continue;
    ++check.num_changed_keys;
    const engine::KeyClass key_class = ClassOf(pointer);
    check.changes = std::max(*check.changes, key_class);
    if (key_class == engine::KeyClass::kSemantic) check.semantic_keys.push_back(pointer);
  }
  std::ranges::sort(check.semantic_keys);
}

// The unit roundoff of a training with this config. A script may compute in a lower precision than
// its config says (TF32, autocast).
double UnitRoundoff(const ExperimentSpec& spec, const Json& ds_config) {
  const auto is_on = [&](const char* pointer) {
    const Json* value = FindAtPointer(ds_config, pointer);
    return value != nullptr && *value != Json(false);
  };
  if (is_on("/bf16/enabled") || !IsBuiltin(spec)) return kBf16Roundoff;
  return is_on("/fp16/enabled") ? kF16Roundoff : kF32Roundoff;
}

// Whether runs with fp16 and a dynamic loss scale may have skipped other updates than these. How
// many gradients overflow depends on the split of the batch and on the stage.
bool MaySkipOthers(const SearchState& search, const Trial& soak,
                   const std::vector<const Trial*>& runs) {
  const Json* fp16 = FindAtPointer(soak.ds_config, "/fp16");
  const bool is_dynamic = fp16 != nullptr && fp16->value("enabled", Json(false)) != Json(false) &&
                          fp16->value("loss_scale", Json(0)) == Json(0);
  if (!is_dynamic) return false;
  const auto skipped = [&](const Trial& trial) {
    return ValueAtBest(trial, search.spec.options.metric, "skipped_steps").value_or(0);
  };
  return !IsBuiltin(search.spec) || std::ranges::any_of(runs, [&](const Trial* run) {
    return skipped(*run) != skipped(soak);
  });
}

}  // namespace

LossCheck CompareLosses(const std::vector<LossCurve>& submitted, const LossCurve& curve,
                        const LossLimits& limits) {
  if (submitted.empty() || (submitted.size() < 2 && !limits.repeats))
    return NotChecked("the submitted configuration was not run twice with this batch size");
  size_t num_steps = curve.size();
  for (const LossCurve& run : submitted)
    num_steps = std::min(num_steps, run.size());
  const std::vector<Step> steps = StepsOf(submitted, num_steps);
  if (steps.size() < kLeastSteps) {
    return NotChecked(fmt::format("only {} finite losses of steps in common, {} are needed",
                                  steps.size(), kLeastSteps));
  }
  const auto num_runs = static_cast<double>(submitted.size());
  const double noise = submitted.size() == 1
                           ? 0
                           : MedianOver(steps, [](const Step& s) { return s.deviation; }) *
                                 std::sqrt(1 + 1 / num_runs) *
                                 StudentQuantile(1 - kFalseAlarms / 2, std::ssize(submitted) - 1);
  const double learned =
      MedianOver(steps, [&](const Step& s) { return std::abs(steps[0].mean - s.mean); });
  const double median = MedianOver(steps, [](const Step& s) { return std::abs(s.mean); });
  const double loss = median > 0 ? median : 1;  // Differences have no share of losses of 0.
  const auto difference_at = [&curve](const Step& s) {
    const double difference = curve[s.index] - s.mean;
    return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
  };
  const double first = std::abs(difference_at(steps[0]));
  const double rounding = kRoundoffs * limits.unit_roundoff * learned + kLeastRounding * loss;
  const double allowed = noise + rounding;

  LossCheck check;
  check.num_steps = std::ssize(steps);
  check.num_runs = std::ssize(submitted);
  check.only_learning =
      limits.changes == engine::KeyClass::kSemantic || (limits.random_by_split && first > allowed);
  check.allowed = allowed / loss;
  if (check.only_learning) {
    const double random = std::min(2 * first, kRandomPart * std::abs(steps[0].mean));
    check.allowed += (kSemanticPart * learned + random) / loss;
  }
  check.difference = MedianOver(steps, [&](const Step& s) {
    const double difference = difference_at(s);
    return (check.only_learning ? difference : std::abs(difference)) / loss;
  });
  check.result =
      check.difference <= check.allowed ? LossCheck::Result::kAlike : LossCheck::Result::kDiffers;
  if (check.result == LossCheck::Result::kAlike &&
      noise > std::max(kSemanticPart * learned, kMostNoise * loss)) {
    return NotChecked(
        fmt::format("the losses of its {} runs differ so much from each other that a difference of "
                    "{:.0f} % would be allowed; --confirm N compares with more runs",
                    submitted.size(), 100 * check.allowed));
  }
  return check;
}

std::vector<const Trial*> SubmittedRuns(const SearchState& search, int64_t train_batch_size) {
  std::vector<const Trial*> runs;
  for (const auto& [id, trial] : search.trials) {
    const bool is_run = trial.kind == TrialKind::kSubmitted ||
                        trial.kind == TrialKind::kReference ||
                        (trial.kind == TrialKind::kConfirm && trial.confirms == search.submitted);
    if (!is_run || trial.state != TrialState::kSucceeded) continue;
    const bool is_known = !LossesOf(trial, search.spec.options.metric).empty();
    if (is_known && GlobalBatch(trial.ds_config) == train_batch_size) runs.push_back(&trial);
  }
  return runs;
}

bool SubmittedRepeats(const SearchState& search) {
  const std::optional<TrialId> submitted = search.submitted;
  if (!submitted) return false;
  const std::string& metric = search.spec.options.metric;
  const std::vector<const Trial*> runs =
      SubmittedRuns(search, GlobalBatch(search.BestConfigOf(*submitted)));
  return runs.size() >= 2 && std::ranges::all_of(runs, [&](const Trial* run) {
           const LossCurve a = LossesOf(*runs[0], metric), b = LossesOf(*run, metric);
           return std::equal(a.begin(), a.begin() + std::min(std::ssize(a), std::ssize(b)),
                             b.begin());
         });
}

LossCheck NoLossCheck(const SearchState& search, TrialId id) {
  LossCheck check;
  const std::optional<TrialId> submitted = search.submitted;
  if (id == submitted) return check;
  const ExperimentSpec& spec = search.spec;
  const Json from = submitted ? search.BestConfigOf(*submitted)
                              : engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial);
  AddChanges(from, search.BestConfigOf(id), check);
  return check;
}

LossCheck CheckLosses(const SearchState& search, const Trial& soak) {
  const std::optional<TrialId> submitted = search.submitted;
  if (soak.confirms == submitted) return NotChecked("it is the submitted configuration");
  LossCheck check = NoLossCheck(search, soak.confirms.value_or(soak.id));
  const auto not_checked = [&check](std::string why) {
    check.why = std::move(why);
    return check;
  };
  const std::string& metric = search.spec.options.metric;
  const LossCurve curve = LossesOf(soak, metric);
  if (curve.empty()) return not_checked(kNoLosses);
  if (!submitted || search.trials.at(*submitted).state != TrialState::kSucceeded)
    return not_checked("the submitted configuration was not measured");
  const int64_t was = GlobalBatch(search.BestConfigOf(*submitted));
  const int64_t is = GlobalBatch(soak.ds_config);
  const std::vector<const Trial*> runs = SubmittedRuns(search, is);
  const bool repeats = SubmittedRepeats(search);
  if (runs.size() < (repeats ? 1 : 2) && was != is) {
    std::string why = fmt::format("the global batch changed from {} to {}", was, is);
    for (const auto& [id, trial] : search.trials) {
      if (trial.kind == TrialKind::kReference && trial.state != TrialState::kSucceeded &&
          GlobalBatch(trial.ds_config) == is)
        why += fmt::format(", with which the submitted configuration (trial {}) {}", id,
                           trial.state == TrialState::kFailed ? "failed" : "was not measured");
    }
    if (search.Dropped().contains(*submitted))
      why += ", and the submitted configuration dropped out";
    return not_checked(std::move(why));
  }
  std::vector<LossCurve> curves;
  for (const Trial* run : runs)
    curves.push_back(LossesOf(*run, metric));
  LossCheck compared = CompareLosses(
      curves, curve,
      {.unit_roundoff = UnitRoundoff(search.spec, soak.ds_config),
       .changes = MaySkipOthers(search, soak, runs) ? engine::KeyClass::kSemantic : *check.changes,
       .random_by_split = !IsBuiltin(search.spec),
       .repeats = repeats});
  compared.changes = check.changes;
  compared.num_changed_keys = check.num_changed_keys;
  compared.semantic_keys = std::move(check.semantic_keys);
  return compared;
}

LossCheck CheckLossesOf(const SearchState& search, TrialId id) {
  if (!search.spec.options.check_losses) return NoLossCheck(search, id);
  Trial run = search.trials.at(search.SoakOf(id).value_or(id));
  if (run.state != TrialState::kSucceeded) run = search.trials.at(id);
  run.confirms = id;
  run.ds_config = search.BestConfigOf(id);
  return CheckLosses(search, run);
}

std::string Describe(const LossCheck& check) {
  if (check.result == LossCheck::Result::kNotChecked) return check.why;
  if (std::isinf(check.difference))
    return fmt::format("most losses of {} steps are not finite", check.num_steps);
  const char* const how = !check.only_learning   ? "differ"
                          : check.difference < 0 ? "are better"
                                                 : "are worse";
  return fmt::format("the losses of {} steps {} by {:.2g} % ({:.2g} % is allowed)", check.num_steps,
                     how, 100 * std::abs(check.difference), 100 * check.allowed);
}

std::string TrainsOtherwise(const LossCheck& check) {
  return "does not train like the submitted configuration: " + Describe(check);
}

std::string ToString(engine::KeyClass key_class) {
  constexpr const char* kNames[] = {"exact", "rounding", "semantic"};
  return kNames[static_cast<size_t>(key_class)];
}

Json ToJson(const LossCheck& check) {
  constexpr const char* kNames[] = {"not checked", "alike", "differs"};
  return {{"result", kNames[static_cast<size_t>(check.result)]},
          {"why", check.why},
          {"steps", check.num_steps},
          {"runs", check.num_runs},
          {"difference", check.difference},
          {"allowed", check.allowed},
          {"only_learning", check.only_learning},
          {"changes", check.changes ? Json(ToString(*check.changes)) : Json()},
          {"semantic_keys", check.semantic_keys}};
}

LossCurve LossesOf(const Trial& trial, const std::string& metric) {
  const PointResult* best = BestPoint(trial, metric);
  return best == nullptr ? LossCurve() : best->losses;
}

int64_t GlobalBatch(const Json& ds_config) {
  return ds_config.at("train_batch_size").get<int64_t>();
}

}  // namespace dsat
