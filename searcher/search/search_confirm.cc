// Chooses the arms that a search confirms, and who takes the places of those that drop out.
#include <algorithm>
#include <tuple>
#include <utility>

#include "searcher/search/loss_check.h"
#include "searcher/search/phases.h"

namespace dsat {
namespace {

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
  switch (started.kind) {
    case TrialKind::kProfile:
    case TrialKind::kReference:
    case TrialKind::kSoak:
    case TrialKind::kLarger:
      return;
    case TrialKind::kSubmitted:
    case TrialKind::kSearch:  // It may be better than all that were compared.
      if (!state_.confirmation) return;
      state_.confirmation.reset();
      state_.left_out.clear();
      state_.num_forgiven = state_.Dropped().size();
      return;
    case TrialKind::kConfirm:
      if (!planned_) return;
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
  if (!state_.spec.options.check_losses) return;
  for (const TrialId arm : state_.confirmation->Arms()) {
    const std::optional<TrialId> soak = state_.SoakOf(arm);
    if (!soak || state_.trials.at(*soak).state != TrialState::kSucceeded) continue;
    const LossCheck losses = CheckLosses(state_, state_.trials.at(*soak));
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

}  // namespace dsat
