// Chooses the arms that a search confirms, and who takes the places of those that drop out.
#include <algorithm>
#include <utility>

#include "searcher/search/phases.h"

namespace dsat {

std::optional<Trial> ConfirmPhase::Next() {
  planned_.reset();
  if (state_.num_running > 0 || state_.spec.options.confirm_rounds == 0) return std::nullopt;
  if (!state_.confirmation || HasLostFinalists()) planned_ = Plan();
  const std::optional<TrialId> arm = (planned_ ? planned_ : state_.confirmation)->Next();
  return arm ? std::optional(state_.RunAgain(TrialKind::kConfirm, *arm)) : std::nullopt;
}

void ConfirmPhase::Start(const Trial& started) {
  switch (started.kind) {
    case TrialKind::kProfile:
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
      return;
    case TrialKind::kReference:
    case TrialKind::kSoak:
      if (state_.confirmation) state_.confirmation->DoNotExtend();
  }
}

void ConfirmPhase::Tell(const Trial& finished) {
  std::optional<Confirmation>& confirmation = state_.confirmation;
  if (!confirmation) return;
  if (finished.kind == TrialKind::kConfirm) {
    confirmation->Add(*finished.confirms, finished);
    if (confirmation->GoesOn() && ConfirmsTooLong(state_.trials, state_.spec.options))
      confirmation->DoNotExtend();
  } else if (finished.kind == TrialKind::kSoak && finished.state == TrialState::kInfeasible) {
    confirmation->LeaveOut(*finished.confirms, "infeasible: " + finished.reason);
  }
}

void ConfirmPhase::Reopen() {
  if (state_.confirmation) state_.confirmation->AllowExtension();
}

bool ConfirmPhase::MayGoOn() const {
  return !state_.confirmation || state_.confirmation->MayExtend() || HasLostFinalists();
}

Confirmation ConfirmPhase::Plan() const {
  const SearchOptions& options = state_.spec.options;
  const std::vector<TrialId> arms = Arms();
  const bool has_submitted = !arms.empty() && arms.front() == state_.submitted;
  Confirmation plan(arms, has_submitted ? state_.submitted : std::nullopt, options.confirm_rounds,
                    state_.end_reason.empty() ? NumLooks(state_.trials, arms, options) : 1,
                    options.metric);
  for (const TrialId arm : arms)
    plan.AddSearched(arm, state_.trials.at(arm));
  return plan;
}

// Whether all finalists have dropped out, and others can take their places.
bool ConfirmPhase::HasLostFinalists() const {
  if (!state_.confirmation || state_.Compares() || !state_.end_reason.empty()) return false;
  const bool has_finalist = std::ranges::any_of(
      state_.confirmation->Arms(), [this](TrialId arm) { return arm != state_.submitted; });
  return !has_finalist && !state_.HasLostMany() && Arms().size() > 1;
}

// The arms that are measured again: the submitted configuration and the finalists that may beat it;
// nothing if there is nothing to compare. A check measures its candidate alone if the submitted one
// does not fit.
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
  for (const TrialId id : state_.Find().finalists) {
    if (std::ranges::find(arms, id) == arms.end()) arms.push_back(id);
  }
  if (!state_.end_reason.empty()) arms.resize(NumArmsInLimits(state_.trials, arms, state_.spec));
  return arms.size() > 1 ? arms : std::vector<TrialId>();
}

}  // namespace dsat
