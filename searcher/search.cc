// Limits, the order of trials, and when it is over; what to try is the proposer's.
#include "searcher/search.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/config/validate.h"
#include "methods/options.h"
#include "profiler/predictor.h"
#include "profiler/tuning_space.h"
#include "proto/search_policy.h"
#include "searcher/proposer.h"

namespace dsat {

struct Search::State {
  ExperimentSpec spec;
  std::map<TrialId, Trial> trials;
  int64_t num_running = 0;
  std::optional<TrialId> submitted;
  // Set together, once the profile is known.
  std::optional<ModelProfile> profile;
  std::optional<SearchSpace> space;
  std::unique_ptr<Proposer> proposer;
  // The method's next trial, kept if Finished has looked for one: it does so while nothing runs, so
  // that no event can come before the next Ask.
  std::optional<Draft> next;
  std::unique_ptr<Predictor> predictor;         // Made when it is first asked.
  std::map<std::string, std::string> verdicts;  // Of the predictor, by effective configuration.
  std::vector<Refusal> last_refused;
  int64_t num_refused = 0;

  bool HasCapacity() const;
  // Only the method's trials are left to ask for.
  bool AtMethod() const { return profile && (submitted || !PolicyOf(spec.options).try_submitted); }
  void SetProfile(const ModelProfile& learned, const std::optional<SearchSpace>& given);
  std::string Misfit(const Draft& draft);
  std::optional<Draft> NextDraft(const std::vector<Refusal>* recorded);
  Trial Start(TrialKind kind, const Draft& draft);
  Trial StartProfile();
};

namespace {

void CheckSpec(const ExperimentSpec& spec) {
  ValidateOptions(spec.options);
  FindMethod(spec.method);
  if (spec.slots_per_trial < 1) {
    Throw(ErrorCode::kInvalidArgument, "resources.slots_per_trial: {}; expected 1 or more",
          spec.slots_per_trial);
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

SearchSpace MakeSpace(const ExperimentSpec& spec, const ModelProfile& profile,
                      const Predictor& predictor) {
  return MakeSearchSpace(predictor, profile, spec.ds_config, spec.options, spec.slots_per_trial);
}

}  // namespace

Outcome CheckedOutcome(const Trial& trial, const Outcome& outcome, const std::string& metric) {
  if (outcome.state != TrialState::kSucceeded) return outcome;
  if (trial.kind == TrialKind::kProfile) {
    if (trial.profile) return outcome;
    return {TrialState::kFailed, "the profiling trial ended without a model profile"};
  }
  if (MetricValue(trial, metric)) return outcome;
  return {TrialState::kFailed, fmt::format("the trial ended without measuring {}", metric)};
}

bool Search::State::HasCapacity() const {
  const SearchOptions& options = spec.options;
  if (static_cast<int64_t>(trials.size()) >= options.max_trials) return false;
  if (num_running >= options.max_concurrent_trials) return false;
  return !options.max_slots || (num_running + 1) * spec.slots_per_trial <= *options.max_slots;
}

void Search::State::SetProfile(const ModelProfile& learned,
                               const std::optional<SearchSpace>& given) {
  profile = learned;
  space = given ? *given : MakeSpace(spec, learned, *MakeFormulaPredictor(spec, learned));
  proposer = std::make_unique<Proposer>(spec, *space, learned.num_params);
}

// Why the draft cannot run, "" if it may.
std::string Search::State::Misfit(const Draft& draft) {
  if (!predictor) predictor = MakePredictor(spec, *profile);
  const auto found = verdicts.find(draft.key);
  if (found != verdicts.end()) return found->second;
  return verdicts[draft.key] = WhyInfeasible(*predictor, draft.ds_config);
}

std::optional<Draft> Search::State::NextDraft(const std::vector<Refusal>* recorded) {
  if (recorded == nullptr)
    return proposer->Next([this](const Draft& draft) { return Misfit(draft); });
  return proposer->Next([recorded](const Draft& draft) -> std::string {
    const auto same = [&](const Refusal& r) { return r.assignment == draft.assignment; };
    const auto found = std::ranges::find_if(*recorded, same);
    return found == recorded->end() ? "" : found->reason;
  });
}

Trial Search::State::Start(TrialKind kind, const Draft& draft) {
  const auto id = static_cast<TrialId>(trials.size());
  Trial trial{.id = id,
              .kind = kind,
              .assignment = draft.assignment,
              .ds_config = draft.ds_config,
              .state = TrialState::kRunning,
              .reason = {},
              .points = {},
              .profile = std::nullopt};
  if (kind != TrialKind::kProfile) proposer->Start(draft, id);
  if (kind == TrialKind::kSubmitted) submitted = id;
  last_refused = draft.refused;
  num_refused += static_cast<int64_t>(draft.refused.size());
  ++num_running;
  return trials.emplace(id, std::move(trial)).first->second;
}

Trial Search::State::StartProfile() {
  Draft draft{.assignment = {{"/train_micro_batch_size_per_gpu", 1}},
              .ds_config = {},
              .key = {},
              .refused = {}};
  // One micro-batch is enough; the published profiling trial keeps the accumulation as submitted.
  if (!PolicyOf(spec.options).profile_all_micro_batches) {
    draft.assignment["/gradient_accumulation_steps"] = 1;
  }
  draft.ds_config = engine::ConfigForTrial(spec.ds_config, draft.assignment, spec.slots_per_trial);
  return Start(TrialKind::kProfile, draft);
}

Search::Search(ExperimentSpec spec) : state_(std::make_unique<State>()) {
  CheckSpec(spec);
  state_->spec = std::move(spec);
  if (state_->spec.profile) state_->SetProfile(*state_->spec.profile, std::nullopt);
}

Search::~Search() = default;
Search::Search(Search&&) noexcept = default;

std::optional<Trial> Search::Ask(const std::vector<Refusal>* recorded) {
  State& s = *state_;
  if (!s.HasCapacity()) return std::nullopt;
  if (!s.profile) {
    if (!s.trials.empty()) return std::nullopt;  // The profiling trial runs, or did not succeed.
    return s.StartProfile();
  }
  if (!s.AtMethod()) return s.Start(TrialKind::kSubmitted, s.proposer->DraftSubmitted());
  const std::optional<Draft> draft =
      s.next ? std::exchange(s.next, std::nullopt) : s.NextDraft(recorded);
  if (!draft) return std::nullopt;
  return s.Start(TrialKind::kSearch, *draft);
}

void Search::Tell(TrialId id, const Outcome& outcome, std::vector<PointResult> points,
                  std::optional<ModelProfile> profile, const std::optional<SearchSpace>& space) {
  State& s = *state_;
  const auto found = s.trials.find(id);
  if (found == s.trials.end()) {
    Throw(ErrorCode::kNotFound, "trial {}: not of this experiment, which has {} trials", id,
          s.trials.size());
  }
  Trial& trial = found->second;
  if (trial.state != TrialState::kRunning) {
    Throw(ErrorCode::kFailedPrecondition, "trial {}: has ended already ({})", id,
          ToString(trial.state));
  }
  if (outcome.state == TrialState::kRunning) {
    Throw(ErrorCode::kInvalidArgument, "trial {}: told that it is still running", id);
  }
  trial.points = std::move(points);
  if (trial.kind == TrialKind::kProfile) trial.profile = profile;
  const Outcome checked = CheckedOutcome(trial, outcome, s.spec.options.metric);
  trial.state = checked.state;
  trial.reason = checked.reason;
  --s.num_running;
  if (trial.kind != TrialKind::kProfile) {
    s.proposer->End(trial);
  } else if (trial.state == TrialState::kSucceeded) {
    s.SetProfile(*trial.profile, space);
  }
}

bool Search::Finished() const {
  State& s = *state_;
  if (s.num_running > 0) return false;
  if (!s.HasCapacity()) return true;  // Nothing runs: max_trials is reached.
  if (!s.profile) return !s.trials.empty();
  if (!s.AtMethod()) return false;
  if (!s.next) s.next = s.NextDraft(nullptr);
  return !s.next;
}

std::string Search::FailureReason() const {
  const State& s = *state_;
  if (!Finished()) return "";
  const Trial* last = nullptr;
  for (const auto& [id, trial] : s.trials) {
    if (trial.kind == TrialKind::kProfile && trial.state != TrialState::kSucceeded) {
      return fmt::format("the profiling trial (trial {}) ended {}: {}", id, ToString(trial.state),
                         trial.reason);
    }
    if (trial.kind == TrialKind::kProfile) continue;
    if (trial.state == TrialState::kSucceeded) return "";
    last = &trial;
  }
  if (last != nullptr) {
    return fmt::format("no trial succeeded; the last one (trial {}) ended {}: {}", last->id,
                       ToString(last->state), last->reason);
  }
  if (s.proposer && !s.proposer->refusal().empty()) {
    return fmt::format("no configuration could be tried: {}", s.proposer->refusal());
  }
  return "";
}

SearchSpace Search::SpaceFor(const ModelProfile& profile) const {
  return MakeSpace(state_->spec, profile, *MakePredictor(state_->spec, profile));
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

std::optional<TrialId> Search::Best() const {
  const std::string& metric = state_->spec.options.metric;
  const bool smaller = SmallerIsBetter(metric);
  std::optional<TrialId> best;
  double best_value = 0;
  for (const auto& [id, trial] : state_->trials) {
    if (trial.kind == TrialKind::kProfile || trial.state != TrialState::kSucceeded) continue;
    const std::optional<double> value = MetricValue(trial, metric);
    if (!value) continue;
    if (!best || (smaller ? *value < best_value : *value > best_value)) {
      best = id;
      best_value = *value;
    }
  }
  return best;
}

}  // namespace dsat
