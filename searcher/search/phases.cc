// The order of a search, and its phases.
#include "searcher/search/phases.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/config/batch.h"
#include "proto/experiment.h"
#include "proto/search_policy.h"
#include "searcher/search/loss_check.h"
#include "searcher/search/verdict.h"

namespace dsat {
namespace {

template <typename... InThisOrder>
std::vector<std::unique_ptr<Phase>> ListOf(SearchState& state) {
  std::vector<std::unique_ptr<Phase>> phases;
  (phases.push_back(std::make_unique<InThisOrder>(state)), ...);
  return phases;
}

Trial TrialOf(TrialKind kind, Assignment assignment, Json ds_config) {
  Trial trial;
  trial.kind = kind;
  trial.assignment = std::move(assignment);
  trial.ds_config = std::move(ds_config);
  return trial;
}

// Whether a reference run of a global batch is missing. A further one would not succeed if one has
// not.
bool LacksReference(const SearchState& search, int64_t train_batch_size) {
  int64_t count = 0;
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kReference || GlobalBatch(trial.ds_config) != train_batch_size)
      continue;
    if (trial.state != TrialState::kSucceeded) return false;
    ++count;
  }
  return count < (SubmittedRepeats(search) ? 1 : 2);  // A band of noise needs two runs.
}

// The steps of a soak in the time that is left, and by default in half of the time that the
// confirmation has taken.
int64_t SoakSteps(const SearchState& search, TrialId of) {
  const SearchOptions& options = search.spec.options;
  double all_s = 0, longest_s = 0;
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kConfirm) continue;
    all_s += trial.times.seconds();
    longest_s = std::max(longest_s, trial.times.seconds());
  }
  double seconds = search.SecondsLeft();
  if (options.soak_in_budget && all_s > 0) seconds = std::min(seconds, all_s / 2);
  // The longest launch stands for the start of this one.
  longest_s = std::max(longest_s, search.LaunchSeconds(of));
  const double latency_ms =
      ValueAtBest(search.trials.at(of), options.metric, "latency").value_or(0);
  double steps = static_cast<double>(options.soak_steps);
  if (latency_ms > 0) steps = std::min(steps, (seconds - longest_s) * 1000 / latency_ms);
  const int64_t least = options.end_profile_step + 1;  // As the comparison of losses needs.
  return std::max(least, static_cast<int64_t>(std::max(steps, 0.0)));
}

// How much a configuration changes of the submitted one: first by class, then whether the global
// batch changes, then by the number of keys.
auto ChangeOf(const SearchState& search, TrialId id) {
  const LossCheck change = NoLossCheck(search, id);
  const bool other_batch =
      search.submitted && GlobalBatch(search.BestConfigOf(id)) !=
                              GlobalBatch(search.trials.at(*search.submitted).ds_config);
  return std::tuple(change.changes, other_batch, change.num_changed_keys);
}

}  // namespace

std::vector<std::unique_ptr<Phase>> PhasesOf(SearchState& state) {
  if (state.Compares()) return ListOf<CheckPhase, ConfirmPhase, ProofPhase>(state);
  return ListOf<ProfilePhase, SubmittedPhase, MethodPhase, ConfirmPhase, LargerBatchPhase,
                ProofPhase>(state);
}

std::optional<Trial> ProfilePhase::Next() {
  if (state_.profile || !state_.running.empty() || !state_.end_reason.empty()) return std::nullopt;
  const bool may_try = std::ranges::all_of(state_.trials, [this](const auto& entry) {
    return entry.second.state == TrialState::kInfeasible || state_.withdrawn.contains(entry.first);
  });
  const std::optional<ExperimentSpec> spec = state_.ProfiledSpec();
  if (!may_try || !spec || !state_.HasCapacity()) return std::nullopt;
  Assignment assignment = {{kMicroBatchKey, 1}};
  // One micro-batch is enough; the published profiling trial keeps the accumulation as submitted.
  if (!PolicyOf(spec->options).profile_all_micro_batches) assignment[kAccumulationKey] = 1;
  Json config = engine::ConfigForTrial(spec->ds_config, assignment, spec->slots_per_trial);
  return TrialOf(TrialKind::kProfile, std::move(assignment), std::move(config));
}

bool SubmittedPhase::IsDue() const {
  const bool is_missing = !state_.submitted || state_.withdrawn.contains(*state_.submitted);
  return is_missing && PolicyOf(state_.spec.options).try_submitted &&
         state_.SubmittedMisfit().empty();
}

std::optional<Trial> SubmittedPhase::Next() {
  const bool is_withdrawn = state_.submitted && !state_.end_reason.empty();
  if (!IsDue() || is_withdrawn || !state_.HasCapacity()) return std::nullopt;
  Draft draft = state_.proposer->DraftSubmitted();
  return TrialOf(TrialKind::kSubmitted, std::move(draft.assignment), std::move(draft.ds_config));
}

std::optional<Trial> MethodPhase::Next() {
  if (is_exhausted_ || !state_.end_reason.empty()) return std::nullopt;
  if (state_.HasCapacity() && state_.proposer->Propose(state_.recorded))
    return state_.proposer->Proposed();
  is_exhausted_ = state_.running.empty();
  return std::nullopt;
}

void MethodPhase::Start(const Trial& started) {
  if (!RunsAgain(started.kind) && started.kind != TrialKind::kProfile)
    state_.proposer->Start(started);
}

void MethodPhase::Tell(const Trial& finished) {
  if (!state_.proposer) return;
  switch (finished.kind) {
    case TrialKind::kSubmitted:
    case TrialKind::kSearch:
      return state_.proposer->End(finished);
    case TrialKind::kProfile:
    case TrialKind::kConfirm:
      return state_.proposer->Observe(finished);
    case TrialKind::kReference:
    case TrialKind::kLarger:  // It is outside the space.
      return;
    case TrialKind::kSoak:  // Other losses are no evidence about memory.
      if (finished.state != TrialState::kInfeasible || finished.points.empty())
        state_.proposer->Observe(finished);
  }
}

std::optional<Trial> CheckPhase::Next() {
  const ExperimentSpec& spec = state_.spec;
  if (!state_.running.empty() || state_.trials.size() >= 2) return std::nullopt;
  const bool is_first = state_.trials.empty();
  return TrialOf(
      is_first ? TrialKind::kSubmitted : TrialKind::kSearch, {},
      engine::ConfigForTrial(is_first ? spec.ds_config : spec.candidate, {}, spec.slots_per_trial));
}

std::optional<Trial> ConfirmPhase::Next() {
  planned_.reset();
  if (!state_.running.empty() || state_.spec.options.confirm_rounds == 0) return std::nullopt;
  if (!state_.confirmation || HasLostFinalists()) planned_ = Plan();
  const Confirmation& confirmation = planned_ ? *planned_ : *state_.confirmation;
  const std::optional<TrialId> arm = confirmation.Next();
  if (!arm || state_.LaunchSeconds(*arm) > state_.SecondsLeft()) return std::nullopt;
  if (std::optional<Trial> proof = ProofIn(confirmation, *arm)) return proof;
  return state_.RunAgain(TrialKind::kConfirm, *arm);
}

// Returns the run that proves the arm which is next, if that is the pick as things stand. It takes
// the place of its launch.
std::optional<Trial> ConfirmPhase::ProofIn(const Confirmation& confirmation, TrialId arm) const {
  if (!confirmation.MayEndWithNext()) return std::nullopt;
  std::optional<Trial> proof = ProofOf(state_, arm);
  if (!proof || proof->kind != TrialKind::kSoak) return proof;
  // It measures as many steps as another launch of the arm does.
  const SearchOptions& options = state_.spec.options;
  const PointResult& measured = *BestPoint(state_.trials.at(arm), options.metric);
  const auto latency = measured.measurement.find("latency");
  const int64_t samples = latency == measured.measurement.end() ? 0 : latency->second.samples;
  proof->steps =
      std::max({proof->steps, std::ssize(measured.losses), options.start_profile_step + samples});
  return proof;
}

void ConfirmPhase::Start(const Trial& started) {
  const bool is_new = started.kind == TrialKind::kSubmitted || started.kind == TrialKind::kSearch;
  if (is_new && state_.confirmation) {  // It may be better than all that were compared.
    state_.confirmation.reset();
    state_.left_out.clear();
    state_.num_forgiven = state_.Dropped().size();
  } else if (started.kind == TrialKind::kConfirm && planned_) {
    state_.left_out = state_.Dropped();
    state_.confirmation = std::exchange(planned_, std::nullopt);
  }
}

void ConfirmPhase::Tell(const Trial& finished) {
  std::optional<Confirmation>& confirmation = state_.confirmation;
  if (!confirmation || !finished.confirms) return;
  const bool is_soak = finished.kind == TrialKind::kSoak;
  if (is_soak && finished.state == TrialState::kInfeasible) {
    confirmation->LeaveOut(*finished.confirms, "infeasible: " + finished.reason);
  } else if (finished.kind == TrialKind::kConfirm ||
             (is_soak && confirmation->Next() == finished.confirms)) {
    confirmation->Add(*finished.confirms, finished, state_.IsForgiven(finished));
  }
  AddBeliefs(*confirmation);
  LeaveOutWhatTrainsOtherwise();
}

// The method has seen all launches, and knows which were slowed down by something else.
void ConfirmPhase::AddBeliefs(Confirmation& confirmation) const {
  const Findings found = state_.Find();
  for (const TrialId arm : confirmation.Arms()) {
    if (found.speeds.contains(arm)) confirmation.AddBelief(arm, found.speeds.at(arm));
  }
}

// Further runs of the submitted configuration show more than those that a soak was compared with.
void ConfirmPhase::LeaveOutWhatTrainsOtherwise() {
  for (const TrialId arm : state_.confirmation->Arms()) {
    const std::optional<TrialId> soak = state_.SoakOf(arm);
    if (!soak || state_.trials.at(*soak).state == TrialState::kRunning) continue;
    const LossCheck losses = CheckLossesOf(state_, arm);
    if (losses.result == LossCheck::Result::kDiffers)
      state_.confirmation->LeaveOut(arm, TrainsOtherwise(losses));
  }
}

Confirmation ConfirmPhase::Plan() const {
  const SearchOptions& options = state_.spec.options;
  const std::vector<TrialId> arms = Arms();
  const bool has_submitted = !arms.empty() && arms.front() == state_.submitted;
  ConfirmPlan plan{.arms = arms,
                   .base = has_submitted ? state_.submitted : std::nullopt,
                   .looks = state_.Compares() ? std::vector{options.confirm_rounds}
                                              : LooksUpTo(options.confirm_rounds),
                   .noise = state_.Noise(),
                   .seed = options.random_seed,
                   .metric = options.metric};
  double launches_s = 0;
  for (const TrialId arm : arms)
    launches_s += state_.LaunchSeconds(arm);
  if (const double training_s = state_.TrainingSeconds(); training_s > 0)
    plan.round_cost = 2 * launches_s / static_cast<double>(arms.size()) / training_s;
  Confirmation confirmation(std::move(plan));
  if (has_submitted && state_.RanAlone(arms.front()))
    confirmation.AddSearched(state_.trials.at(arms.front()));
  AddBeliefs(confirmation);
  return confirmation;
}

// Whether all finalists have dropped out, and others can take their places.
bool ConfirmPhase::HasLostFinalists() const {
  if (!state_.confirmation || state_.Compares() || !state_.end_reason.empty()) return false;
  const bool has_finalist = std::ranges::any_of(
      state_.confirmation->Arms(), [this](TrialId arm) { return arm != state_.submitted; });
  return !has_finalist && !state_.HasLostMany() && Arms().size() > 1;
}

// The arms that are measured again: the submitted configuration and the finalists that may beat it,
// those first that change least; nothing if there is nothing to compare. A check measures its
// candidate alone if the submitted one does not fit.
std::vector<TrialId> ConfirmPhase::Arms() const {
  const std::optional<TrialId>& submitted = state_.submitted;
  std::vector<TrialId> arms;
  if (state_.MayWin(submitted)) arms.push_back(*submitted);
  if (state_.Compares()) {
    constexpr TrialId kCandidate = 1;
    const bool is_alone =
        submitted && state_.trials.at(*submitted).state == TrialState::kInfeasible;
    if (!state_.MayWin(kCandidate) || (arms.empty() && !is_alone)) return {};
    arms.push_back(kCandidate);
    return arms;
  }
  const size_t num_bases = arms.size();
  double look_s = 0;
  for (const TrialId arm : arms)
    look_s += kFirstLook * state_.LaunchSeconds(arm);
  for (const TrialId id : state_.Find().finalists) {
    if (std::ranges::find(arms, id) != arms.end()) continue;
    // So many as can be compared in the time that is left, and one in any case.
    look_s += kFirstLook * state_.LaunchSeconds(id);
    if (arms.size() > num_bases && look_s > state_.SecondsLeft()) break;
    arms.push_back(id);
  }
  std::stable_sort(
      arms.begin() + static_cast<ptrdiff_t>(num_bases), arms.end(),
      [this](TrialId a, TrialId b) { return ChangeOf(state_, a) < ChangeOf(state_, b); });
  return arms.size() > 1 ? arms : std::vector<TrialId>();
}

std::optional<Trial> LargerBatchPhase::Next() {
  constexpr int kMostTries = 3;
  const bool keeps_batch = state_.space && state_.space->samples_per_step > 0;
  if (!keeps_batch || !state_.running.empty() || !state_.end_reason.empty() || !state_.confirmation)
    return std::nullopt;
  const std::optional<TrialId> pick = VerdictOf(state_).pick;
  if (!pick || state_.LaunchSeconds(*pick) > state_.SecondsLeft()) return std::nullopt;
  Trial larger = state_.RunAgain(TrialKind::kLarger, *pick);
  const int64_t least_size = ConfigPoint(larger).micro_batch_size;
  std::optional<Point> point;
  int tries = 0;
  for (const TrialId id : state_.reruns) {
    const Trial& run = state_.trials.at(id);
    if (run.kind != TrialKind::kLarger || run.confirms != pick) continue;
    ++tries;
    point = ConfigPoint(run);
    // Half of the micro-batch may fit.
    if (run.state != TrialState::kInfeasible || tries == kMostTries ||
        point->micro_batch_size % 2 != 0 || point->micro_batch_size <= least_size)
      return std::nullopt;
    point->micro_batch_size /= 2;
    point->accumulation_steps *= 2;
  }
  if (!point) point = state_.proposer->method().LargerBatch(state_.trials.at(*pick));
  if (!point) return std::nullopt;
  larger.ds_config.erase("train_batch_size");  // It follows.
  larger.ds_config = ConfigAt(larger, *point, state_.spec.slots_per_trial);
  return larger;
}

std::optional<Trial> ProofPhase::Next() {
  const auto pick = state_.running.empty() ? VerdictOf(state_).pick : std::nullopt;
  return pick ? ProofOf(state_, *pick) : std::nullopt;
}

std::optional<Json> WithGlobalBatch(const Json& submitted, int64_t train_batch_size) {
  const int64_t micro_batch = submitted.at("train_micro_batch_size_per_gpu");
  const int64_t accumulation = submitted.at("gradient_accumulation_steps");
  const int64_t replicas = GlobalBatch(submitted) / (micro_batch * accumulation);
  if (replicas < 1 || train_batch_size % replicas != 0) return std::nullopt;
  const int64_t samples = train_batch_size / replicas;
  const int64_t size = LargestDivisor(samples, micro_batch);
  Json config = submitted;
  config["train_batch_size"] = train_batch_size;
  config["train_micro_batch_size_per_gpu"] = size;
  config["gradient_accumulation_steps"] = samples / size;
  return config;
}

std::optional<Trial> ProofOf(const SearchState& search, TrialId pick) {
  const SearchOptions& options = search.spec.options;
  // A soak that may take as long as the confirmation needs one.
  const bool soaks =
      options.soak_steps > 0 && (!options.soak_in_budget || search.confirmation.has_value());
  if (search.SoakOf(pick) || search.LaunchSeconds(pick) > search.SecondsLeft()) return std::nullopt;
  const Json config = search.BestConfigOf(pick);
  const std::optional<TrialId> submitted = search.submitted;
  const bool compares = options.check_losses && search.confirmation && submitted &&
                        pick != submitted &&
                        !LossesOf(search.trials.at(pick), options.metric).empty() &&
                        !LossesOf(search.trials.at(*submitted), options.metric).empty();
  if (compares && !search.Dropped().contains(*submitted) &&
      GlobalBatch(config) != GlobalBatch(search.BestConfigOf(*submitted)) &&
      LacksReference(search, GlobalBatch(config))) {
    Trial reference = search.RunAgain(TrialKind::kReference, *submitted);
    const std::optional<Json> legal = WithGlobalBatch(reference.ds_config, GlobalBatch(config));
    if (legal) {
      reference.ds_config = *legal;
      return reference;
    }
  }
  if (!soaks && !compares) return std::nullopt;
  Trial soak = search.RunAgain(TrialKind::kSoak, pick);
  soak.steps = SoakSteps(search, pick);
  return soak;
}

}  // namespace dsat
