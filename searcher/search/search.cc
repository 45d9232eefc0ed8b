// The limits, the order of trials and when the search is over; the proposer decides what to try.
#include "searcher/search/search.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/config/batch.h"
#include "methods/options.h"
#include "profiler/predictor.h"
#include "profiler/tuning_space.h"
#include "proto/search_policy.h"
#include "searcher/search/profile_ladder.h"
#include "searcher/search/search_rules.h"
#include "searcher/search/search_state.h"

namespace dsat {
namespace {

// "failed" or "was infeasible".
std::string EndOf(const Trial& trial) {
  return trial.state == TrialState::kFailed ? "failed"
                                            : fmt::format("was {}", ToString(trial.state));
}

}  // namespace

bool Search::State::HasCapacity(bool is_replay) const {
  const SearchOptions& options = spec.options;
  const auto num_tried = static_cast<int64_t>(trials.size()) - num_again;
  if (!is_replay && num_tried >= options.max_trials) return false;
  // Left by a runner that was interrupted, before limits were raised: it is measured alone.
  const bool runs_again = std::ranges::any_of(trials, [](const auto& entry) {
    return entry.second.state == TrialState::kRunning && RunsAgain(entry.second.kind);
  });
  if (!is_replay && runs_again) return false;
  if (num_running >= options.max_concurrent_trials) return false;
  return !options.max_slots || (num_running + 1) * spec.slots_per_trial <= *options.max_slots;
}

void Search::State::SetProfile(const ModelProfile& learned,
                               const std::optional<SearchSpace>& given) {
  profile = learned;
  space = given ? *given : MakeSearchSpace(*MakeFormulaPredictor(tuned, learned), learned, tuned);
  proposer = std::make_unique<Proposer>(tuned, *space, learned.num_params);
}

// Why the draft cannot run, "" if it may.
std::string Search::State::Misfit(const Draft& draft) {
  if (!predictor) predictor = MakePredictor(tuned, *profile);
  const auto found = verdicts.find(draft.key);
  if (found != verdicts.end()) return found->second;
  return verdicts[draft.key] = WhyInfeasible(*predictor, draft.ds_config);
}

// The trial to start next; nullopt if there is none now.
std::optional<Search::State::Next> Search::State::MakeNext(const RecordedAsk* recorded) {
  if (Compares()) {
    if (std::optional<Next> arm = NextToCompare()) return arm;
    return NextConfirm(recorded);
  }
  if (!profile) return NextProfile(recorded != nullptr);
  // Proposals that end a search are not in the log: a recorded confirmation says that it was over.
  if (recorded != nullptr && recorded->kind == TrialKind::kConfirm) method_is_over = true;
  if (!method_is_over && end_reason.empty()) {
    if (std::optional<Next> trial = NextOfMethod(recorded)) return trial;
    if (num_running > 0) return std::nullopt;
    method_is_over = true;
  }
  return NextConfirm(recorded);
}

std::optional<Search::State::Next> Search::State::NextOfMethod(const RecordedAsk* recorded) {
  if (!HasCapacity(recorded != nullptr)) return std::nullopt;
  const bool tries_submitted = PolicyOf(spec.options).try_submitted && submitted_misfit.empty();
  const bool asks_again = submitted && withdrawn.contains(*submitted) &&
                          (recorded == nullptr || recorded->kind == TrialKind::kSubmitted);
  if (tries_submitted && (!submitted || asks_again))
    return Next{TrialKind::kSubmitted, proposer->DraftSubmitted()};
  std::optional<Draft> draft;
  if (recorded == nullptr) {
    draft = proposer->Next([this](const Draft& d) { return Misfit(d); });
  } else {
    draft = proposer->Next([recorded](const Draft& d) -> std::string {
      const auto same = [&](const Refusal& r) { return r.assignment == d.assignment; };
      const auto found = std::ranges::find_if(recorded->refused, same);
      return found == recorded->refused.end() ? "" : found->reason;
    });
  }
  if (!draft) return std::nullopt;
  return Next{TrialKind::kSearch, *std::move(draft)};
}

std::optional<Search::State::Next> Search::State::NextToCompare() {
  if (num_running > 0 || (submitted && candidate)) return std::nullopt;
  Next next{submitted ? TrialKind::kSearch : TrialKind::kSubmitted, {}};
  next.draft.ds_config =
      engine::ConfigForTrial(submitted ? spec.candidate : spec.ds_config, {}, spec.slots_per_trial);
  return next;
}

// The first profiling trial, or the next one after one that did not fit.
std::optional<Search::State::Next> Search::State::NextProfile(bool is_replay) {
  if (num_running > 0 || !HasCapacity(is_replay) || (!is_replay && !end_reason.empty())) return {};
  if (trials.size() != num_misfits + withdrawn.size()) return {};
  const std::vector<Json> ladder = ProfileLadder(spec);
  if (num_misfits >= ladder.size()) return std::nullopt;
  Next next{TrialKind::kProfile, {}};
  next.draft.assignment = {{kMicroBatchKey, 1}};
  // One micro-batch is enough; the published profiling trial keeps the accumulation as submitted.
  if (!PolicyOf(spec.options).profile_all_micro_batches)
    next.draft.assignment[kAccumulationKey] = 1;
  next.draft.ds_config =
      engine::ConfigForTrial(ladder[num_misfits], next.draft.assignment, spec.slots_per_trial);
  return next;
}

// What was looked ahead for may not come.
void Search::State::ForgetNext() {
  if (next && proposer) proposer->Discard();
  next.reset();
  if (!confirms) confirmation.reset();
}

Trial Search::State::Start(const Next& started) {
  const auto id = static_cast<TrialId>(trials.size());
  const Draft& draft = started.draft;
  Trial trial{.id = id,
              .kind = started.kind,
              .assignment = draft.assignment,
              .ds_config = draft.ds_config,
              .state = TrialState::kRunning,
              .reason = {},
              .points = {},
              .profile = std::nullopt,
              .confirms = started.confirms,
              .give_up_below = draft.give_up_below,
              .steps = started.steps};
  const bool is_tried = trial.kind == TrialKind::kSubmitted || trial.kind == TrialKind::kSearch;
  if (proposer && is_tried) proposer->Start(draft, id);
  if (trial.kind == TrialKind::kSubmitted) submitted = id;
  if (trial.kind == TrialKind::kSearch && Compares()) candidate = id;
  if (RunsAgain(trial.kind)) ++num_again;
  if (trial.kind == TrialKind::kConfirm) confirms = true;
  if (is_tried && confirms) {  // It may be better than all that were compared.
    confirms = false;
    confirmation.reset();
    left_out.clear();
    num_forgiven = Dropped().size();
  }
  goes_on = false;
  last_refused = draft.refused;
  num_refused += static_cast<int64_t>(draft.refused.size());
  ++num_running;
  return trials.emplace(id, std::move(trial)).first->second;
}

Trial& Search::State::RunningTrial(TrialId id) {
  const auto found = trials.find(id);
  if (found == trials.end()) {
    Throw(ErrorCode::kNotFound, "trial {}: not of this experiment, which has {} trials", id,
          trials.size());
  }
  if (found->second.state != TrialState::kRunning) {
    Throw(ErrorCode::kFailedPrecondition, "trial {}: has ended already ({})", id,
          ToString(found->second.state));
  }
  return found->second;
}

Search::Search(ExperimentSpec spec, std::unique_ptr<Predictor> predictor)
    : state_(std::make_unique<State>()) {
  CheckSearchSpec(spec);
  state_->spec = state_->tuned = std::move(spec);
  state_->predictor = std::move(predictor);
  if (state_->spec.profile) state_->SetProfile(*state_->spec.profile, std::nullopt);
}

Search::~Search() = default;
Search::Search(Search&&) noexcept = default;

std::optional<Trial> Search::Ask(const RecordedAsk* recorded) {
  State& s = *state_;
  LookAhead(recorded);
  const std::optional<State::Next> next = std::exchange(s.next, std::nullopt);
  if (!next) return std::nullopt;
  return s.Start(*next);
}

// Sets the next trial if there is one. A replay takes what has proved the pick from the log: an
// older dsat may have picked otherwise.
void Search::LookAhead(const RecordedAsk* recorded) const {
  State& s = *state_;
  if (s.next) return;
  std::optional<ProofRun> proof = recorded == nullptr ? std::nullopt : recorded->proof;
  if (!proof) s.next = s.MakeNext(recorded);
  if (s.next || s.num_running > 0 || !s.profile) return;
  if (recorded == nullptr) proof = NextProof(*this);
  if (!proof) return;
  s.method_is_over = true;
  if (s.confirmation) s.confirmation->DoNotExtend();
  s.next = State::Next{proof->kind, {}, proof->of, proof->steps};
  s.next->draft.assignment = s.trials.at(proof->of).assignment;
  s.next->draft.ds_config = proof->ds_config;
}

void Search::Tell(TrialId id, const Outcome& outcome, std::vector<PointResult> points,
                  std::optional<ModelProfile> profile, const std::optional<SearchSpace>& space,
                  TrialTimes times) {
  State& s = *state_;
  Trial& trial = s.RunningTrial(id);
  if (outcome.state == TrialState::kRunning) {
    Throw(ErrorCode::kInvalidArgument, "trial {}: told that it is still running", id);
  }
  trial.points = std::move(points);
  trial.times = times;
  if (trial.kind == TrialKind::kProfile) trial.profile = profile;
  const Outcome checked = CheckedOutcome(trial, outcome, s.spec.options.metric);
  trial.state = checked.state;
  trial.reason = checked.reason;
  --s.num_running;
  if (trial.state == TrialState::kStopped && !s.end_reason.empty()) s.withdrawn.insert(id);
  if (id == s.submitted) s.first_after_submitted = static_cast<TrialId>(s.trials.size());
  if (trial.kind == TrialKind::kConfirm) {
    if (s.confirms) {  // Else it has run since before limits were raised.
      s.confirmation->Add(*trial.confirms, trial);
      if (s.confirmation->GoesOn() && ConfirmsTooLong(s.trials, s.spec.options))
        s.confirmation->DoNotExtend();
    }
    if (s.proposer) s.proposer->Observe(trial);
  } else if (RunsAgain(trial.kind)) {
    const bool drops_out = trial.kind == TrialKind::kSoak && trial.state == TrialState::kInfeasible;
    if (drops_out && s.confirmation)
      s.confirmation->LeaveOut(*trial.confirms, "infeasible: " + trial.reason);
    if (drops_out && trial.points.empty() && s.proposer) s.proposer->Observe(trial);
  } else if (trial.kind != TrialKind::kProfile) {
    if (s.proposer) s.proposer->End(trial);
  } else if (trial.state == TrialState::kSucceeded) {
    s.tuned.ds_config = ProfileLadder(s.spec)[s.num_misfits];
    s.SetProfile(*trial.profile, space);
    s.proposer->Observe(trial);
  } else if (trial.state == TrialState::kInfeasible) {
    if (s.num_misfits++ == 0) s.submitted_misfit = trial.reason;
  }
}

std::optional<Point> Search::Measured(TrialId id, const std::vector<PointResult>& points) {
  State& s = *state_;
  Trial& trial = s.RunningTrial(id);
  trial.points = points;
  if (trial.kind != TrialKind::kSearch || !s.proposer || !s.space->exact) return std::nullopt;
  return s.proposer->NextPoint(trial);
}

bool Search::Fits(TrialId id, const Point& point) {
  State& s = *state_;
  return s.Misfit(s.proposer->DraftAt(s.trials.at(id), point)).empty();
}

void Search::EndSearch(const std::string& reason) {
  state_->end_reason = reason;
  state_->ForgetNext();
  if (state_->confirmation) state_->confirmation->DoNotExtend();
}

const std::string& Search::EndReason() const {
  return state_->end_reason;
}

void Search::RaiseLimits(const LimitsRaised& limits) {
  State& s = *state_;
  SearchOptions& options = s.spec.options;
  if (limits.max_trials) options.max_trials = *limits.max_trials;
  if (limits.max_time_s) options.max_time_s = limits.max_time_s;
  if (limits.max_device_hours) options.max_device_hours = limits.max_device_hours;
  ValidateOptions(options);
  s.end_reason.clear();
  s.method_is_over = false;
  s.goes_on = true;
  s.ForgetNext();
  if (s.confirmation) s.confirmation->AllowExtension();
}

bool Search::Finished() const {
  if (state_->num_running > 0) return false;
  LookAhead(nullptr);
  return !state_->next;
}

std::string Search::FailureReason() const {
  const State& s = *state_;
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
  ExperimentSpec tuned = state_->spec;
  tuned.ds_config = ProfileLadder(tuned)[state_->num_misfits];
  const std::unique_ptr<Predictor> made =
      state_->predictor ? nullptr : MakePredictor(tuned, profile);
  return MakeSearchSpace(made ? *made : *state_->predictor, profile, tuned);
}

const std::vector<Refusal>& Search::LastRefused() const {
  return state_->last_refused;
}
int64_t Search::NumRefused() const {
  return state_->num_refused;
}
const ExperimentSpec& Search::spec() const {
  return state_->spec;
}
const std::map<TrialId, Trial>& Search::trials() const {
  return state_->trials;
}
std::optional<TrialId> Search::Submitted() const {
  return state_->submitted;
}
TrialId Search::FirstAfterSubmitted() const {
  return state_->first_after_submitted;
}
const std::string& Search::SubmittedMisfit() const {
  return state_->submitted_misfit;
}
Findings Search::Find() const {
  return state_->Find();
}
std::optional<double> Search::ProbabilityNearBest(TrialId pick) const {
  if (!state_->proposer) return std::nullopt;
  return state_->proposer->ProbabilityNearBest(state_->trials.at(pick));
}
std::string Search::BoundOf(TrialId pick) const {
  return state_->proposer ? state_->proposer->BoundOf(state_->trials.at(pick)) : "";
}
Json Search::BestConfigOf(TrialId id) const {
  return state_->BestConfigOf(id);
}
bool Search::MayGoOn() const {
  const State& s = *state_;
  if (!s.end_reason.empty()) return false;
  if (!s.method_is_over) return true;
  const bool soaked = std::ranges::any_of(s.trials, [](const auto& entry) {
    return entry.second.kind == TrialKind::kSoak && entry.second.state != TrialState::kInfeasible;
  });
  return !s.confirms || s.confirmation->MayExtend() || s.HasLostFinalists() ||
         (s.spec.options.soak_steps > 0 && !soaked);
}
std::map<TrialId, std::string> Search::Dropped() const {
  return state_->Dropped();
}
const Confirmation* Search::confirmation() const {
  return state_->confirms ? &*state_->confirmation : nullptr;
}
const std::optional<SearchSpace>& Search::space() const {
  return state_->space;
}
const std::optional<ModelProfile>& Search::profile() const {
  return state_->profile;
}

std::vector<TrialId> Search::Running() const {
  std::vector<TrialId> running;
  for (const auto& [id, trial] : state_->trials) {
    if (trial.state == TrialState::kRunning) running.push_back(id);
  }
  return running;
}

double Search::SlotSeconds() const {
  double seconds = 0;
  for (const auto& [id, trial] : state_->trials)
    seconds += trial.times.ended_s - trial.times.started_s;
  return seconds * static_cast<double>(state_->spec.slots_per_trial);
}

std::optional<TrialId> Search::Best() const {
  const std::string& metric = state_->spec.options.metric;
  const bool smaller = SmallerIsBetter(metric);
  std::optional<TrialId> best;
  double best_value = 0;
  for (const auto& [id, trial] : state_->trials) {
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

}  // namespace dsat
