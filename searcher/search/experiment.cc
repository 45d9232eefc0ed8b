// A search tied to its log.
#include "searcher/search/experiment.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "profiler/predictor.h"
#include "proto/search_policy.h"
#include "searcher/search/loss_check.h"
#include "searcher/search/verdict.h"
#include "searcher/search/warm_start.h"

namespace dsat {
namespace {

// Throws kInvalidArgument if the log could not be read back with these in it.
void CheckReadable(TrialId trial, const PointResult& result) {
  MeasurementFromJson(ToJson(result.measurement), fmt::format("trial {}: measurement", trial));
}

void CheckReadable(TrialId trial, const ModelProfile& profile) {
  ProfileFromJson(ToJson(profile), fmt::format("trial {}: model profile", trial));
}

// A speed or a time of zero cannot be compared with others.
void CheckAboveZero(TrialId trial, const Measurement& measurement, const std::string& metric) {
  for (const std::string& name : {metric, std::string("throughput"), std::string("latency")}) {
    const auto found = measurement.find(name);
    if (found == measurement.end() || found->second.value > 0) continue;
    Throw(ErrorCode::kInvalidArgument, "trial {}: measurement/{} is 0; expected a number > 0",
          trial, name);
  }
}

// The metrics of the points, for an error.
std::string Names(const std::vector<PointResult>& points) {
  std::set<std::string> names;
  for (const PointResult& point : points) {
    for (const auto& [name, metric] : point.measurement)
      names.insert(name);
  }
  return names.empty() ? "no metric" : fmt::format("{}", fmt::join(names, ", "));
}

void CheckEnded(TrialId trial, const Outcome& outcome) {
  if (outcome.state != TrialState::kRunning) return;
  Throw(ErrorCode::kInvalidArgument,
        "trial {}: told \"running\"; expected succeeded, infeasible, failed or stopped", trial);
}

// The first place where two configs differ: "/zero_optimization/stage: 2, recorded 1".
std::string FirstDifference(const Json& replayed, const Json& recorded) {
  const std::string pointer = Json::diff(replayed, recorded).at(0).at("path").get<std::string>();
  const auto text = [&pointer](const Json& json) {
    const Json* value = FindAtPointer(json, pointer);
    return value ? value->dump() : std::string("nothing");
  };
  return fmt::format("{} is {}, recorded {}", pointer.empty() ? "it" : pointer, text(replayed),
                     text(recorded));
}

// "" if a replayed ask is the recorded one.
std::string Difference(const Trial& replayed, const Trial& recorded) {
  if (replayed.id != recorded.id) {
    return fmt::format("number {}, recorded {}", replayed.id, recorded.id);
  }
  if (replayed.kind != recorded.kind) {
    return fmt::format("kind {}, recorded {}", ToString(replayed.kind), ToString(recorded.kind));
  }
  const Json assignment = replayed.assignment, recorded_as = recorded.assignment;
  if (assignment != recorded_as) {
    return "assignment: " + FirstDifference(assignment, recorded_as);
  }
  if (replayed.ds_config != recorded.ds_config) {
    return "ds_config: " + FirstDifference(replayed.ds_config, recorded.ds_config);
  }
  return "";
}

[[noreturn]] void ThrowDiverged(const std::string& db, ExperimentId id, TrialId trial,
                                const std::string& what) {
  Throw(ErrorCode::kDataLoss,
        "experiment {}: trial {} does not replay as it was recorded ({}); it was made by another "
        "version of dsat, or its log is damaged: use that version, or start a new experiment; if "
        "it has ended, its answer is read by `dsat query --db {} \"SELECT ds_config FROM trials "
        "JOIN experiments AS e ON experiment = e.id AND trials.id = pick WHERE e.id = {}\"`",
        id, trial, what, ShellWord(db), id);
}

}  // namespace

void Experiment::Check(const ExperimentSpec& spec) {
  Search(spec).Finished();  // It looks at what comes first.
}

Experiment Experiment::Create(Store& store, const ExperimentSpec& spec) {
  Check(spec);  // A refused spec is not recorded.
  if (spec.options.auto_method.warm_start == "off")
    return Experiment(store, store.CreateExperiment(spec));
  ExperimentSpec with_prior = spec;
  with_prior.options.auto_method.prior = FindPrior(store, spec);
  return Experiment(store, store.CreateExperiment(with_prior));
}

// Answers what needs no trial and then starts one, if `starts`. This moves the search before the
// log: if the log refuses, the search is ahead of it and is replayed from the start.
std::optional<Trial> Experiment::Advance(bool starts) {
  while (true) {
    CatchUp();
    if (state_ != ExperimentState::kActive) return std::nullopt;
    needs_replay_ = true;
    std::vector<Event> events;
    for (const Answered& answer : search_->Settle())
      events.push_back(AnsweredEvent(answer));
    const std::optional<Trial> trial = starts ? search_->Start() : std::nullopt;
    if (trial) events.push_back(AskedEvent(*trial));
    try {
      if (!Append(events)) continue;
    } catch (const Error&) {
      CatchUp();
      throw;
    }
    last_seq_ += std::ssize(events);
    needs_replay_ = false;
    return trial;
  }
}

// False if another process has appended first.
bool Experiment::Append(std::span<const Event> events) {
  if (holds_back_) held_.insert(held_.end(), events.begin(), events.end());
  if (holds_back_ || events.empty()) return true;
  try {
    store_->Append(id_, last_seq_, events);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kAborted) throw;
    return false;
  }
}

void Experiment::Flush() {
  if (held_.empty()) return;
  store_->Append(id_, last_seq_ - std::ssize(held_), held_);
  held_.clear();
}

template <typename MakeEvents>
void Experiment::Commit(const MakeEvents& make_events) {
  while (true) {
    CatchUp();
    std::vector<Event> events = make_events();
    if (events.empty()) return;
    if (!Append(events)) continue;
    needs_replay_ = true;
    for (Event& event : events) {
      event.seq = last_seq_ + 1;
      Apply(event, /*has_ended=*/false);
    }
    needs_replay_ = false;
    return;
  }
}

void Experiment::Tell(TrialId id, const Outcome& outcome, const TrialTimes& times) {
  CheckEnded(id, outcome);
  Commit([&] {
    const Trial& trial = RunningTrial(id);
    const std::vector<Attempt> attempts = Attempts(id);
    const Attempt last = attempts.empty() ? Attempt() : attempts.back();
    Outcome told = Checked(trial, outcome, last);
    std::optional<SearchSpace> space;
    const std::string refusal = RefusalOf([&] { space = SpaceAfter(trial, told, last); });
    // The conditions leave nothing of what is predicted to matter.
    if (!refusal.empty()) told = {TrialState::kFailed, refusal};
    return std::vector<Event>{ToldEvent(id, told, space, times)};
  });
}

void Experiment::TellExternal(TrialId id, const Outcome& outcome,
                              const std::vector<PointResult>& points,
                              const std::optional<ModelProfile>& profile) {
  CheckEnded(id, outcome);
  for (const PointResult& point : points) {
    CheckReadable(id, point);
    CheckAboveZero(id, point.measurement, search_->spec().options.metric);
  }
  if (profile) CheckReadable(id, *profile);
  Commit([&] {
    const Trial& trial = RunningTrial(id);
    const Attempt measured = {points, profile, {}};
    const Outcome told = Checked(trial, outcome, measured);
    if (told.state == TrialState::kFailed && outcome.state != TrialState::kFailed)
      Throw(ErrorCode::kInvalidArgument, "trial {}: {}; told: {}", id, told.reason, Names(points));
    std::vector<Event> events = StartEvents(id, "");
    const int64_t attempt = NumAttempts(id);
    std::optional<double> flops = KnownFlopsPerSample();
    for (const PointResult& point : points) {
      events.push_back(MeasuredEvent(id, attempt, WithFlops(point, flops), std::nullopt));
    }
    if (profile) events.push_back(MeasuredEvent(id, attempt, std::nullopt, profile));
    events.push_back(AttemptEndedEvent(id, attempt, outcome, ""));
    events.push_back(ToldEvent(id, told, SpaceAfter(trial, told, measured)));
    return events;
  });
}

int64_t Experiment::StartAttempt(TrialId id, const std::string& log_dir) {
  Commit([&] {
    RunningTrial(id);
    return StartEvents(id, log_dir);
  });
  return NumAttempts(id) - 1;
}

// The start of a trial's next attempt. One that is still open was cut off with its runner.
std::vector<Event> Experiment::StartEvents(TrialId id, const std::string& log_dir) const {
  std::vector<Event> events;
  const std::vector<Attempt> attempts = Attempts(id);
  const auto next = static_cast<int64_t>(attempts.size());
  if (!attempts.empty() && !attempts.back().end) {
    const Outcome cut_off{TrialState::kStopped, "its search runner ended before it did"};
    events.push_back(AttemptEndedEvent(id, next - 1, cut_off, ""));
  }
  events.push_back(AttemptStartedEvent(id, next, log_dir));
  return events;
}

void Experiment::RecordMeasured(TrialId id, int64_t attempt,
                                const std::optional<PointResult>& result,
                                const std::optional<ModelProfile>& profile) {
  if (result) CheckReadable(id, *result);
  if (profile) CheckReadable(id, *profile);
  Commit([&] {
    OpenAttempt(id, attempt);
    std::optional<double> flops = KnownFlopsPerSample();
    return std::vector<Event>{
        MeasuredEvent(id, attempt, result ? WithFlops(*result, flops) : result, profile)};
  });
}

void Experiment::EndAttempt(TrialId id, int64_t attempt, const Outcome& outcome,
                            const std::string& log_tail) {
  CheckEnded(id, outcome);
  Commit([&] {
    OpenAttempt(id, attempt);
    return std::vector<Event>{AttemptEndedEvent(id, attempt, outcome, log_tail)};
  });
}

int64_t Experiment::NumAttempts(TrialId id) const {
  const auto found = attempts_.find(id);
  return found == attempts_.end() ? 0 : static_cast<int64_t>(found->second.size());
}

int64_t Experiment::NumFailedAttempts(TrialId id) const {
  return std::ranges::count_if(Attempts(id), [](const Attempt& attempt) {
    return attempt.end && attempt.end->state == TrialState::kFailed;
  });
}

std::vector<Experiment::Attempt> Experiment::Attempts(TrialId id) const {
  const auto found = attempts_.find(id);
  return found == attempts_.end() ? std::vector<Attempt>() : found->second;
}

std::optional<Point> Experiment::NextPoint(TrialId id) const {
  const auto found = next_points_.find(id);
  return found == next_points_.end() ? std::nullopt : std::optional(found->second);
}

void Experiment::EndSearch(const std::string& reason) {
  Commit([&] { return std::vector<Event>{SearchEndedEvent(reason)}; });
}

void Experiment::RaiseLimits(const LimitsRaised& limits) {
  Commit([&] { return std::vector<Event>{LimitsRaisedEvent(limits, search_->spec().options)}; });
}

void Experiment::SetState(ExperimentState state, const std::string& reason) {
  Commit([&]() -> std::vector<Event> {
    if (state == state_) return {};
    if (state_ != ExperimentState::kActive) {
      Throw(ErrorCode::kFailedPrecondition, "experiment {} is {} already; it cannot become {}", id_,
            ToString(state_), ToString(state));
    }
    return {StateChangedEvent(state, reason, VerdictOf(*search_).pick)};
  });
}

bool Experiment::FinishIfDone() {
  if (search_->IsIdle()) Advance(false);
  const bool finished = search_->Finished();
  if (finished && state_ == ExperimentState::kActive) {
    const std::string failure = search_->FailureReason();
    SetState(failure.empty() ? ExperimentState::kCompleted : ExperimentState::kFailed, failure);
  }
  return finished || state_ != ExperimentState::kActive;
}

// While trials run, the search may have asked its method at another time than the process that
// appended: then it is replayed from the start, with the limits that it had then.
void Experiment::CatchUp() {
  if (needs_replay_) Flush();
  std::vector<Event> events;
  if (!needs_replay_) events = store_->Events(id_, last_seq_);
  if (needs_replay_ || !events.empty()) {
    ExperimentSpec spec = store_->GetSpec(id_);
    events = store_->Events(id_);
    for (const Event& event : events | std::views::reverse) {
      if (event.kind == EventKind::kLimitsRaised) UndoLimits(event, spec.options);
    }
    search_.emplace(std::move(spec));
    state_ = ExperimentState::kActive;
    reason_.clear();
    attempts_.clear();
    measured_flops_.reset();
    next_points_.clear();
    last_seq_ = 0;
  }
  needs_replay_ = true;  // Until all events are applied, should one of them throw.
  std::set<TrialId> ended;
  for (const Event& event : events) {
    if (event.kind == EventKind::kTold) ended.insert(event.trial);
  }
  for (const Event& event : events)
    Apply(event, ended.contains(event.trial));
  needs_replay_ = false;
}

// `has_ended`: its trial ends later in the log.
void Experiment::Apply(const Event& event, bool has_ended) {
  switch (event.kind) {
    case EventKind::kAsked:
      ApplyAsked(event);
      break;
    case EventKind::kAnswered: {
      const Answered answered = AnsweredOf(event);
      if (search_->Answer(answered)) break;
      const TrialId next = std::ssize(search_->trials());
      ThrowDiverged(store_->path(), id_, next,
                    "the method no longer proposes " + Json(answered.assignment).dump());
    }
    case EventKind::kAttemptStarted:
      RunningTrial(event.trial);
      attempts_[event.trial].emplace_back();
      break;
    case EventKind::kMeasured: {
      Attempt& attempt = OpenAttempt(event.trial, AttemptOf(event));
      if (auto point = MeasuredPoint(event)) {
        if (!measured_flops_) measured_flops_ = RankFlopsPerSample(point->measurement);
        attempt.points.push_back(std::move(*point));
        next_points_.erase(event.trial);
        if (const auto next = search_->Measured(event.trial, attempt.points, has_ended))
          next_points_[event.trial] = *next;
      }
      if (auto profile = MeasuredProfile(event)) attempt.profile = profile;
      break;
    }
    case EventKind::kAttemptEnded:
      OpenAttempt(event.trial, AttemptOf(event)).end = OutcomeOf(event);
      break;
    case EventKind::kTold:
      ApplyTold(event);
      break;
    case EventKind::kSearchEnded:
      search_->EndSearch(TextOf(event, "reason"));
      break;
    case EventKind::kLimitsRaised:
      search_->RaiseLimits(LimitsOf(event));
      state_ = ExperimentState::kActive;
      reason_.clear();
      break;
    case EventKind::kStateChanged:
      state_ = StateOf(event);
      reason_ = TextOf(event, "reason");
      break;
  }
  last_seq_ = event.seq;
}

void Experiment::ApplyAsked(const Event& event) {
  const Trial asked = AskedTrial(event);
  const std::optional<Trial> replayed = search_->Start(&asked);
  if (!replayed) ThrowDiverged(store_->path(), id_, event.trial, "the search now asks for none");
  const std::string difference = Difference(*replayed, asked);
  if (!difference.empty()) ThrowDiverged(store_->path(), id_, event.trial, difference);
}

void Experiment::ApplyTold(const Event& event) {
  RunningTrial(event.trial);
  std::vector<Attempt>& attempts = attempts_[event.trial];
  const Outcome outcome = OutcomeOf(event);
  if (attempts.empty()) return search_->Tell(event.trial, outcome, {}, std::nullopt);
  Attempt& last = attempts.back();
  if (!last.end) last.end = outcome;
  search_->Tell(event.trial, outcome, last.points, last.profile, ToldSpace(event),
                ToldTimes(event));
}

const Trial& Experiment::RunningTrial(TrialId id) const {
  const auto found = search_->trials().find(id);
  if (found == search_->trials().end()) {
    Throw(ErrorCode::kNotFound, "experiment {} has no trial {}; {} have been asked for", id_, id,
          search_->trials().size());
  }
  if (found->second.state != TrialState::kRunning) {
    Throw(ErrorCode::kFailedPrecondition, "trial {} of experiment {} has ended already: {}", id,
          id_, ToString(found->second.state));
  }
  return found->second;
}

Experiment::Attempt& Experiment::OpenAttempt(TrialId id, int64_t attempt) {
  RunningTrial(id);
  const int64_t last = NumAttempts(id) - 1;
  if (attempt != last || attempts_[id].back().end) {
    Throw(ErrorCode::kFailedPrecondition,
          "attempt {} of trial {} of experiment {} does not run; its last one is {}", attempt, id,
          id_, last);
  }
  return attempts_[id].back();
}

// The search space that the method gets with this end of a trial; nullopt of all but a profiling
// trial that succeeded.
std::optional<SearchSpace> Experiment::SpaceAfter(const Trial& trial, const Outcome& outcome,
                                                  const Attempt& measured) const {
  if (trial.kind != TrialKind::kProfile || outcome.state != TrialState::kSucceeded)
    return std::nullopt;
  return search_->SpaceFor(*measured.profile);
}

// The experiment's FLOPs per sample and rank (RankFlopsPerSample): what was measured first, or else
// the profile's forward pass and a backward pass of twice its cost. nullopt if neither is known,
// and if every trial's own count stands.
std::optional<double> Experiment::KnownFlopsPerSample() const {
  const ExperimentSpec& spec = search_->spec();
  if (PolicyOf(spec.options).reported_flops) return std::nullopt;
  if (measured_flops_) return measured_flops_;
  const std::optional<ModelProfile>& profile = search_->profile();
  if (!profile || profile->forward_flops_per_sample == 0) return std::nullopt;
  return 3 * static_cast<double>(profile->forward_flops_per_sample) /
         static_cast<double>(spec.slots_per_trial);
}

// The point by the experiment's FLOPs per sample; as reported if it is the first that has them, and
// then sets them.
PointResult Experiment::WithFlops(const PointResult& point, std::optional<double>& flops) const {
  if (PolicyOf(search_->spec().options).reported_flops) return point;
  if (!flops) {
    flops = RankFlopsPerSample(point.measurement);
    return point;
  }
  PointResult known = point;
  known.measurement = WithFlopsPerSample(point.measurement, *flops);
  return known;
}

// The outcome to record: a success that lacks what it was run for has failed, and a soak that does
// not train like the submitted configuration is infeasible. A replay takes what was recorded.
Outcome Experiment::Checked(const Trial& trial, const Outcome& outcome,
                            const Attempt& measured) const {
  Trial told = trial;
  told.points = measured.points;
  told.profile = measured.profile;
  const Outcome checked = CheckedOutcome(told, outcome, search_->spec().options.metric);
  const bool compares = checked.state == TrialState::kSucceeded && trial.kind == TrialKind::kSoak &&
                        search_->spec().options.check_losses;
  if (!compares) return checked;
  const LossCheck losses = CheckLosses(*search_, told);
  if (losses.result != LossCheck::Result::kDiffers) return checked;
  return {TrialState::kInfeasible, TrainsOtherwise(losses)};
}

}  // namespace dsat
