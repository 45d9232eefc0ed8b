// Derives from what a search was told what follows from it.
#include "searcher/search/search_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/files.h"
#include "engine/config/batch.h"
#include "engine/config/keys.h"
#include "engine/config/strategies.h"
#include "methods/auto_priors.h"
#include "profiler/tuning_space.h"
#include "proto/launch_settings.h"
#include "proto/search_policy.h"

namespace dsat {
namespace {

// If so many configurations drop out, something else is wrong.
constexpr size_t kMostLost = 3 * kMostFinalists;

// The configurations in which the profiling trial is tried, each of which keeps what the one before
// it has changed.
std::vector<Json> ProfileLadder(const ExperimentSpec& spec) {
  std::vector<Json> ladder = {spec.ds_config};
  if (PolicyOf(spec.options).published_space) return ladder;
  Json config = engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial);
  SetAtPointer(config, kStageKey, 3);
  ladder.push_back(config);
  if (IsBuiltin(spec)) {
    SetAtPointer(config, "/pipeline/activation_checkpoint_interval", 1);
    ladder.push_back(config);
  }
  ladder.push_back(engine::WithStrategy(config, *engine::FindStrategy("stage_3_offload")));
  return ladder;
}

// The finalists of a search whose method names none, fastest first: of trials that have succeeded,
// those that are at most a tenth slower than the best, and one other than the submitted one in any
// case; kMostFinalists at most.
std::vector<TrialId> FastestTrials(const std::vector<const Trial*>& trials,
                                   std::optional<TrialId> submitted, const std::string& metric) {
  std::vector<std::pair<double, TrialId>> by_speed;
  for (const Trial* trial : trials) {
    const std::optional<double> speed = SpeedOf(*trial, metric);
    if (trial->state == TrialState::kSucceeded && speed) by_speed.emplace_back(-*speed, trial->id);
  }
  std::ranges::sort(by_speed);
  std::vector<TrialId> fastest;
  bool has_other = false;  // Than the submitted configuration, to compare it with.
  for (const auto& [speed, id] : by_speed) {
    // A configuration that is a tenth slower than the best does not win.
    const bool may_win = speed <= 0.9 * by_speed[0].first;
    if (fastest.size() >= kMostFinalists || (has_other && !may_win)) break;
    fastest.push_back(id);
    has_other = has_other || id != submitted;
  }
  return fastest;
}

}  // namespace

bool SearchState::HasCapacity() const {
  const SearchOptions& options = spec.options;
  // A trial that an interrupted runner has left before limits were raised is measured alone.
  if (std::ranges::any_of(running, [this](TrialId id) { return RunsAgain(trials.at(id).kind); }))
    return false;
  const auto num_tried = static_cast<int64_t>(trials.size() - reruns.size());
  const int64_t num_running = std::ssize(running);
  if (num_tried >= options.max_trials || num_running >= options.max_concurrent_trials) return false;
  return !options.max_slots || (num_running + 1) * spec.slots_per_trial <= *options.max_slots;
}

std::optional<ExperimentSpec> SearchState::ProfiledSpec() const {
  const auto num_misfits = std::ranges::count_if(trials, [](const auto& entry) {
    return entry.second.kind == TrialKind::kProfile &&
           entry.second.state == TrialState::kInfeasible;
  });
  const std::vector<Json> ladder = ProfileLadder(spec);
  if (num_misfits >= std::ssize(ladder)) return std::nullopt;
  ExperimentSpec profiled = spec;
  profiled.ds_config = ladder[static_cast<size_t>(num_misfits)];
  return profiled;
}

void AddTrainer(const ModelProfile& profile, ExperimentSpec& spec) {
  for (const auto& [name, value] : profile.trainer.items()) {
    const std::string pointer = kTrainerPrefix + name;
    const bool is_known = engine::Keys().Find(pointer) != nullptr;
    const bool is_given = FindAtPointer(spec.ds_config, pointer) != nullptr ||
                          spec.search_space.contains(ArgumentPointer("--" + name));
    if (is_known && !is_given && spec.options.space == "wide")
      SetAtPointer(spec.ds_config, pointer, value);
  }
}

std::string SearchState::SubmittedMisfit() const {
  for (const auto& [id, trial] : trials) {
    if (trial.kind != TrialKind::kProfile) break;
    if (trial.state == TrialState::kInfeasible) return trial.reason;
  }
  return misfit_by_dry_run;
}

void SearchState::SetProfile(const ModelProfile& learned, const std::optional<SearchSpace>& given) {
  AddTrainer(learned, spec);
  const ExperimentSpec profiled = ProfiledSpec().value();
  profile = learned;
  const std::unique_ptr<Predictor> formulas = MakeFormulaPredictor(profiled, learned);
  space = given ? *given : MakeSearchSpace(*formulas, learned, profiled);
  const Json submitted_config =
      engine::ConfigForTrial(profiled.ds_config, {}, spec.slots_per_trial);
  const Estimate predicted = formulas->Predict(submitted_config);
  if (predicted.tracked && !predicted.fits()) {
    misfit_by_dry_run = fmt::format("its tensors take {} in a dry run, and a device has {}",
                                    HumanBytes(predicted.device.peak_bytes),
                                    HumanBytes(predicted.device.limit_bytes));
  }
  proposer = std::make_unique<Proposer>(profiled, *space, learned.num_params);
}

std::string SearchState::Misfit(const Draft& draft) {
  if (!predictor) predictor = MakePredictor(proposer->spec(), *profile);
  const auto found = verdicts.find(draft.key);
  if (found != verdicts.end()) return found->second;
  return verdicts[draft.key] = WhyInfeasible(*predictor, draft.ds_config);
}

std::optional<TrialId> SearchState::Best() const {
  const std::string& metric = spec.options.metric;
  const bool smaller = SmallerIsBetter(metric);
  std::optional<TrialId> best;
  double best_value = 0;
  for (const auto& [id, trial] : trials) {
    if (trial.kind == TrialKind::kProfile || RunsAgain(trial.kind)) continue;
    const std::optional<double> value = MetricValue(trial, metric);
    if (trial.state != TrialState::kSucceeded || !value) continue;
    if (!best || (smaller ? *value < best_value : *value > best_value)) {
      best = id;
      best_value = *value;
    }
  }
  return best;
}

Findings SearchState::Find() const {
  Findings found;
  const std::map<TrialId, std::string> dropped = Dropped();
  if (proposer) found.conclusion = proposer->method().Conclude();
  std::vector<TrialId> next;  // They follow if the finalists of the method have dropped out.
  const auto add_to = [&](std::vector<TrialId>& finalists, TrialId id) {
    if (!dropped.contains(id) && !NeedsWhatRanOut(trials.at(id))) finalists.push_back(id);
  };
  for (const auto& [tag, speed] : found.conclusion.speeds) {
    const auto id = proposer->TrialOf(tag);
    if (!id) continue;
    found.speeds.emplace(*id, speed);
    if (next.size() < kMostFinalists) add_to(next, *id);
  }
  if (HasLostMany() && MayWin(submitted)) {
    found.finalists = {*submitted};
    return found;
  }
  for (const int64_t tag : found.conclusion.finalists) {
    if (const auto id = proposer->TrialOf(tag)) add_to(found.finalists, *id);
  }
  if (found.finalists.empty()) found.finalists = next;
  if (!found.finalists.empty()) return found;
  std::vector<const Trial*> candidates;
  for (const auto& [id, trial] : trials) {
    const bool is_tried = trial.kind == TrialKind::kSubmitted || trial.kind == TrialKind::kSearch;
    if (is_tried && !dropped.contains(id) && !NeedsWhatRanOut(trial)) candidates.push_back(&trial);
  }
  found.finalists = FastestTrials(candidates, submitted, spec.options.metric);
  return found;
}

Json SearchState::BestConfigOf(TrialId id) const {
  const Trial& trial = trials.at(id);
  const PointResult* best = BestPoint(trial, spec.options.metric);
  return best == nullptr ? trial.ds_config : ConfigAt(trial, best->point, spec.slots_per_trial);
}

Trial SearchState::RunAgain(TrialKind kind, TrialId of) const {
  Trial run;
  run.kind = kind;
  run.assignment = trials.at(of).assignment;
  run.ds_config = BestConfigOf(of);
  run.confirms = of;
  return run;
}

std::map<TrialId, std::string> SearchState::Dropped() const {
  std::map<TrialId, std::string> dropped;
  for (const auto& [id, trial] : trials) {
    const bool again = trial.kind == TrialKind::kConfirm || trial.kind == TrialKind::kSoak;
    if (again && trial.state == TrialState::kInfeasible && !IsForgiven(trial))
      dropped.emplace(*trial.confirms, "infeasible: " + trial.reason);
  }
  if (confirmation) {
    for (const auto& arm : confirmation->LeftOut())
      dropped.insert(arm);
  }
  dropped.insert(left_out.begin(), left_out.end());
  return dropped;
}

bool SearchState::HasLostMany() const {
  return Dropped().size() >= num_forgiven + kMostLost;
}

bool SearchState::MayWin(const std::optional<TrialId>& id) const {
  return id && trials.at(*id).state == TrialState::kSucceeded && !Dropped().contains(*id);
}

std::string SearchState::WhyNoAnswer() const {
  const std::map<TrialId, std::string> dropped = Dropped();
  const bool has_answer = std::ranges::any_of(trials, [&](const auto& entry) {
    const auto& [id, trial] = entry;
    return !RunsAgain(trial.kind) && trial.kind != TrialKind::kProfile &&
           trial.state == TrialState::kSucceeded && !dropped.contains(id) &&
           !NeedsWhatRanOut(trial);
  });
  if (Compares() || has_answer || dropped.empty()) return "";
  const auto found = submitted ? dropped.find(*submitted) : dropped.end();
  const auto& [id, reason] = found == dropped.end() ? *dropped.begin() : *found;
  return fmt::format("no configuration that was measured runs again; trial {} {}", id, reason);
}

std::optional<TrialId> SearchState::SoakOf(TrialId of) const {
  for (const auto& [id, trial] : trials) {
    if (trial.kind == TrialKind::kSoak && trial.confirms == of) return id;
  }
  return std::nullopt;
}

double SearchState::SlotSeconds() const {
  double seconds = 0;
  for (const auto& [id, trial] : trials)
    seconds += trial.times.ended_s - trial.times.started_s;
  return seconds * static_cast<double>(spec.slots_per_trial);
}

bool SearchState::IsForgiven(const Trial& run) const {
  constexpr double kFar = 0.8;
  if (run.kind != TrialKind::kConfirm || !profile) return false;
  const auto peak = ValueAtBest(trials.at(*run.confirms), spec.options.metric, "peak_bytes");
  const bool is_first = std::ranges::none_of(trials, [&run](const auto& entry) {
    return entry.first < run.id && entry.second.kind == run.kind &&
           entry.second.confirms == run.confirms && entry.second.state == TrialState::kInfeasible;
  });
  return peak && is_first && *peak < kFar * static_cast<double>(profile->device_memory_bytes);
}

double SearchState::SecondsLeft() const {
  if (ignores_limits) return INFINITY;
  double left = INFINITY;
  const SearchOptions& options = spec.options;
  if (options.max_time_s) {
    left = *options.max_time_s;
    for (const auto& [id, trial] : trials)
      left = std::min(left, *options.max_time_s - trial.times.ended_s);
  }
  if (options.max_device_hours) {
    const double slot_seconds = *options.max_device_hours * 3600 - SlotSeconds();
    left = std::min(left, slot_seconds / static_cast<double>(spec.slots_per_trial));
  }
  return left;
}

double SearchState::LaunchSeconds(TrialId of) const {
  const Trial& first = trials.at(of);
  double seconds =
      first.times.seconds() / static_cast<double>(std::max<size_t>(first.points.size(), 1));
  for (const auto& [id, trial] : trials) {
    if (trial.kind == TrialKind::kConfirm && trial.confirms == of && trial.times.seconds() > 0)
      seconds = trial.times.seconds();
  }
  return seconds;
}

double SearchState::TrainingSeconds() const {
  const std::optional<int64_t>& steps = spec.options.auto_method.run_steps;
  const auto step_ms =
      submitted ? ValueAtBest(trials.at(*submitted), spec.options.metric, "latency") : std::nullopt;
  if (steps && step_ms) return static_cast<double>(*steps) * *step_ms / 1e3;
  double search_s = 0;
  for (const auto& [id, trial] : trials)
    search_s += RunsAgain(trial.kind) ? 0 : trial.times.seconds();
  return kAutoDecisions.training_per_search * search_s;
}

bool SearchState::RanAlone(TrialId id) const {
  const TrialTimes& times = trials.at(id).times;
  return std::ranges::none_of(trials, [&](const auto& entry) {
    const TrialTimes& other = entry.second.times;
    return entry.first != id && other.started_s < times.ended_s && times.started_s < other.ended_s;
  });
}

LaunchNoise SearchState::Noise() const {
  constexpr int64_t kDof = 6;
  const std::optional<double> sd = proposer ? proposer->method().LaunchNoise() : std::nullopt;
  return sd ? LaunchNoise{.sd = *sd, .dof = kDof, .is_guess = false} : LaunchNoise();
}

// Whether a configuration that needs no more memory than this one has run out of it in a later run,
// and this one has not run again.
bool SearchState::NeedsWhatRanOut(const Trial& trial) const {
  if (trial.id == submitted) return false;  // It is the last resort.
  const bool ran_again = std::ranges::any_of(reruns, [&](TrialId id) {
    const Trial& run = trials.at(id);
    return run.confirms == trial.id && run.state == TrialState::kSucceeded;
  });
  if (ran_again) return false;
  const std::string& metric = spec.options.metric;
  const auto peak_of = [&](const Trial& of) { return ValueAtBest(of, metric, "peak_bytes"); };
  return std::ranges::any_of(reruns, [&](TrialId id) {
    const Trial& run = trials.at(id);
    const bool is_later = run.kind == TrialKind::kConfirm || run.kind == TrialKind::kSoak;
    if (!is_later || run.state != TrialState::kInfeasible || !run.points.empty()) return false;
    if (IsForgiven(run)) return false;
    const Trial& other = trials.at(*run.confirms);
    const auto peak = peak_of(trial), other_peak = peak_of(other);
    if (peak && other_peak) return *peak >= *other_peak;
    const Json ours = BestConfigOf(trial.id), theirs = BestConfigOf(other.id);
    const auto size_of = [](const Json& config) {
      return config.at("train_micro_batch_size_per_gpu").get<int64_t>();
    };
    return ZeroStage(ours) == ZeroStage(theirs) && size_of(ours) >= size_of(theirs);
  });
}

}  // namespace dsat
