// The order of a search, and its first phases: those up to the confirmation.
#include "searcher/search/phases.h"

#include <algorithm>
#include <utility>

#include "engine/config/batch.h"
#include "proto/experiment.h"
#include "proto/search_policy.h"
#include "searcher/search/loss_check.h"
#include "searcher/search/search_state.h"
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
  if (!point) point = state_.proposer->LargerBatch(state_.trials.at(*pick));
  if (!point) return std::nullopt;
  larger.ds_config.erase("train_batch_size");  // It follows.
  larger.ds_config = ConfigAt(larger, *point, state_.spec.slots_per_trial);
  return larger;
}

std::optional<Trial> ProofPhase::Next() {
  return !state_.running.empty() ? std::nullopt : NextProof(state_);
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

std::optional<Trial> NextProof(const SearchState& search) {
  const Verdict verdict = VerdictOf(search);
  return verdict.pick ? ProofOf(search, *verdict.pick) : std::nullopt;
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
