// The order of a search, and its first phases: those up to the confirmation.
#include "searcher/search/phases.h"

#include <algorithm>
#include <utility>

#include "engine/config/batch.h"
#include "proto/search_policy.h"
#include "searcher/search/proof.h"
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

}  // namespace dsat
