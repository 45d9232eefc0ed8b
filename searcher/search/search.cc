// Leads a search through its phases.
#include "searcher/search/search.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/config/batch.h"
#include "engine/config/validate.h"
#include "methods/methods.h"
#include "profiler/tuning_space.h"

namespace dsat {
namespace {

// "failed" or "was infeasible".
std::string EndOf(const Trial& trial) {
  return trial.state == TrialState::kFailed ? "failed"
                                            : fmt::format("was {}", ToString(trial.state));
}

void CheckSpec(const ExperimentSpec& spec) {
  ValidateOptions(spec.options);
  if (spec.candidate.is_null()) FindMethod(spec.method);
  if (spec.slots_per_trial < 1) {
    Throw(ErrorCode::kInvalidArgument, "resources.slots_per_trial: {}; expected 1 or more",
          spec.slots_per_trial);
  }
  if (IsBuiltin(spec) && !spec.options.loss_pattern.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "--loss-pattern: \"{}\" is for a command of your own; the built-in engine reports its "
          "losses: leave the option out",
          spec.options.loss_pattern);
  }
  const std::optional<int64_t>& max_slots = spec.options.max_slots;
  if (max_slots && *max_slots < spec.slots_per_trial) {
    Throw(ErrorCode::kInvalidArgument,
          "--max-slots: {} is too few for one trial; expected {} or more "
          "(resources.slots_per_trial)",
          *max_slots, spec.slots_per_trial);
  }
  const std::string source = spec.ds_config_path.empty() ? "ds_config" : spec.ds_config_path;
  const Json resolved = engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial);
  engine::ValidateDsConfig(resolved, source, spec.slots_per_trial);
}

}  // namespace

Outcome CheckedOutcome(const Trial& trial, const Outcome& outcome, const std::string& metric) {
  if (outcome.state != TrialState::kSucceeded) return outcome;
  if (trial.kind == TrialKind::kProfile) {
    if (trial.profile) return outcome;
    return {TrialState::kFailed, "the profiling trial ended without a model profile"};
  }
  if (MetricValue(trial, metric)) return outcome;
  std::string other;  // Another metric that it could be searched by.
  for (const PointResult& point : trial.points)
    if (point.measurement.contains("throughput"))
      other =
          ", the metric of this search; one that is created with --metric throughput can use it";
  return {TrialState::kFailed,
          fmt::format("the trial ended without measuring {}{}", metric, other)};
}

Search::Search(ExperimentSpec spec, std::unique_ptr<Predictor> predictor)
    : state_(std::make_unique<SearchState>()) {
  CheckSpec(spec);
  state_->spec = std::move(spec);
  state_->predictor = std::move(predictor);
  if (state_->spec.profile) state_->SetProfile(*state_->spec.profile, std::nullopt);
  phases_ = PhasesOf(*state_);
}

void Search::HasChanged() {
  next_.reset();
  has_looked_ = false;
}

void Search::LookAhead(const Recorded* recorded) const {
  if (has_looked_) return;
  state_->recorded = recorded;
  for (const std::unique_ptr<Phase>& phase : phases_) {
    next_ = phase->Next();
    if (next_ || !phase->IsOver()) break;
  }
  has_looked_ = true;
}

// While nothing runs, what a search asks its method does not depend on when it is asked: it looks
// ahead once something depends on that.
void Search::LookAheadIfIdle() const {
  if (IsIdle()) LookAhead();
}

std::optional<Trial> Search::Ask() {
  Settle();
  return Start();
}

std::vector<Answered> Search::Settle() {
  const auto misfit = [this](const Draft& draft) { return state_->Misfit(draft); };
  std::vector<Answered> answers;
  LookAhead();
  while (next_ && next_->kind == TrialKind::kSearch && state_->proposer) {
    const std::optional<Answered> answer = state_->proposer->AnswerTo(misfit);
    if (!answer || !Answer(*answer)) break;
    answers.push_back(*answer);
    LookAhead();
  }
  return answers;
}

bool Search::Answer(const Answered& recorded) {
  const Recorded proposed{.assignment = recorded.assignment};
  LookAhead(&proposed);
  const bool is_proposed = next_ && next_->kind == TrialKind::kSearch && state_->proposer;
  if (!is_proposed || !state_->proposer->Answer(recorded)) return false;
  HasChanged();
  return true;
}

std::optional<Trial> Search::Start(const Trial* recorded) {
  Recorded proposed;
  if (recorded != nullptr && recorded->kind == TrialKind::kSearch)
    proposed = {.assignment = recorded->assignment, .is_started = true};
  LookAhead(recorded == nullptr ? nullptr : &proposed);
  if (recorded != nullptr && next_) next_->give_up_below = recorded->give_up_below;
  if (!next_) return std::nullopt;
  SearchState& s = *state_;
  Trial trial = *std::exchange(next_, std::nullopt);
  trial.id = static_cast<TrialId>(s.trials.size());
  trial.state = TrialState::kRunning;
  for (const std::unique_ptr<Phase>& phase : phases_)
    phase->Start(trial);
  if (trial.kind == TrialKind::kSubmitted) s.submitted = trial.id;
  s.trials.emplace(trial.id, trial);
  s.running.insert(trial.id);
  if (RunsAgain(trial.kind)) s.reruns.push_back(trial.id);
  HasChanged();
  return trial;
}

Trial& Search::RunningTrial(TrialId id) {
  DSAT_CHECK(state_->running.contains(id), "trial {} does not run", id);
  return state_->trials.at(id);
}

void Search::Tell(TrialId id, const Outcome& outcome, std::vector<PointResult> points,
                  std::optional<ModelProfile> profile, const std::optional<SearchSpace>& space,
                  TrialTimes times) {
  SearchState& s = *state_;
  Trial& trial = RunningTrial(id);
  if (outcome.state == TrialState::kRunning) {
    Throw(ErrorCode::kInvalidArgument, "trial {}: told that it is still running", id);
  }
  trial.points = std::move(points);
  trial.times = times;
  if (trial.kind == TrialKind::kProfile) trial.profile = std::move(profile);
  const Outcome checked = CheckedOutcome(trial, outcome, s.spec.options.metric);
  trial.state = checked.state;
  trial.reason = checked.reason;
  s.running.erase(id);
  if (trial.state == TrialState::kStopped && !s.end_reason.empty()) s.withdrawn.insert(id);
  if (id == s.submitted) s.first_after_submitted = static_cast<TrialId>(s.trials.size());
  if (trial.kind == TrialKind::kProfile && trial.state == TrialState::kSucceeded)
    s.SetProfile(*trial.profile, space);
  for (const std::unique_ptr<Phase>& phase : phases_)
    phase->Tell(trial);
  HasChanged();
}

std::optional<Point> Search::Measured(TrialId id, const std::vector<PointResult>& points,
                                      bool has_ended) {
  Trial& trial = RunningTrial(id);
  trial.points = points;
  if (trial.kind != TrialKind::kSearch || !state_->proposer || !state_->space->exact)
    return std::nullopt;
  return state_->proposer->Measured(trial, has_ended);
}

bool Search::Fits(TrialId id, const Point& point) {
  return state_->Misfit(state_->proposer->DraftAt(state_->trials.at(id), point)).empty();
}

void Search::EndSearch(const std::string& reason) {
  LookAheadIfIdle();
  state_->end_reason = reason;
  HasChanged();
}

void Search::RaiseLimits(const LimitsRaised& limits) {
  LookAheadIfIdle();
  SearchOptions& options = state_->spec.options;
  if (limits.max_trials) options.max_trials = *limits.max_trials;
  if (limits.max_time_s) options.max_time_s = limits.max_time_s;
  if (limits.max_device_hours) options.max_device_hours = limits.max_device_hours;
  if (limits.confirm_rounds) options.confirm_rounds = *limits.confirm_rounds;
  ValidateOptions(options);
  const bool has_time = limits.max_time_s || limits.max_device_hours;
  state_->ignores_limits = limits.confirm_rounds && !has_time;
  if (limits.confirm_rounds && state_->confirmation)
    state_->confirmation->Extend(LooksUpTo(*limits.confirm_rounds));
  if (has_time || limits.max_trials) {
    state_->end_reason.clear();
    for (const std::unique_ptr<Phase>& phase : phases_)
      phase->Reopen();
  }
  HasChanged();
}

bool Search::Finished() const {
  LookAheadIfIdle();
  return IsIdle() && !next_;
}

bool Search::MayGoOn() const {
  LookAheadIfIdle();
  return state_->end_reason.empty() &&
         std::ranges::any_of(phases_, [](const auto& phase) { return phase->MayGoOn(); });
}

std::string Search::FailureReason() const {
  const SearchState& s = *state_;
  if (!Finished()) return "";
  const Trial* last = nullptr;
  for (const auto& [id, trial] : s.trials) {
    if (trial.kind == TrialKind::kProfile && !s.profile) last = &trial;
    if (trial.kind == TrialKind::kProfile) continue;
    if (trial.state == TrialState::kSucceeded) return s.WhyNoAnswer();
    last = &trial;
  }
  const bool is_profile = last != nullptr && last->kind == TrialKind::kProfile;
  if (last != nullptr && !is_profile && s.submitted) last = &s.trials.at(*s.submitted);
  // A limit does not hide what is wrong with the trials.
  const bool ended_badly = last != nullptr && (last->state == TrialState::kFailed ||
                                               last->state == TrialState::kInfeasible);
  const bool is_told = ended_badly && s.end_reason.find(last->reason) != std::string::npos;
  if (!s.end_reason.empty() && (!ended_badly || is_told)) return s.end_reason;
  const std::string limit = s.end_reason.empty() ? "" : fmt::format(" ({})", s.end_reason);
  if (is_profile) {
    return fmt::format("the profiling trial (trial {}) {}: {}{}", last->id, EndOf(*last),
                       last->reason, limit);
  }
  if (last != nullptr) {
    return fmt::format("no trial succeeded; the {} one (trial {}) {}: {}{}",
                       s.submitted ? "submitted" : "last", last->id, EndOf(*last), last->reason,
                       limit);
  }
  if (s.proposer && !s.proposer->refusal().empty()) {
    return fmt::format("no configuration could be tried: {}", s.proposer->refusal());
  }
  return "";
}

SearchSpace Search::SpaceFor(const ModelProfile& profile) const {
  ExperimentSpec profiled = state_->ProfiledSpec().value();
  AddTrainer(profile, profiled);
  const std::unique_ptr<Predictor> made =
      state_->predictor ? nullptr : MakePredictor(profiled, profile);
  return MakeSearchSpace(made ? *made : *state_->predictor, profile, profiled);
}

}  // namespace dsat
