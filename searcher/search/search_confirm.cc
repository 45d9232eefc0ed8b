// What a search confirms: its arms, and who takes the places of those that drop out.
#include <algorithm>

#include "searcher/search/search_state.h"

namespace dsat {
namespace {

// If so many configurations drop out, something else is wrong.
constexpr size_t kMostLost = 3 * kMostFinalists;

}  // namespace

std::optional<Search::State::Next> Search::State::NextConfirm(const RecordedAsk* recorded) {
  if (num_running > 0 || spec.options.confirm_rounds == 0) return std::nullopt;
  if (HasLostFinalists()) {
    left_out = Dropped();
    confirmation.reset();
  } else if (recorded != nullptr && goes_on && confirms &&
             recorded->confirms != confirmation->Next()) {
    // Older versions began another confirmation whenever limits were raised.
    confirmation.reset();
  }
  if (!confirmation) {
    const std::vector<TrialId> arms = Arms();
    const bool has_submitted = !arms.empty() && arms.front() == submitted;
    confirmation.emplace(
        arms, has_submitted ? submitted : std::nullopt, spec.options.confirm_rounds,
        end_reason.empty() ? NumLooks(trials, arms, spec.options) : 1, spec.options.metric);
    for (const TrialId arm : arms)
      confirmation->AddSearched(arm, trials.at(arm));
  }
  if (recorded != nullptr && !confirmation->Next()) confirmation->Extend();
  const std::optional<TrialId> arm = confirmation->Next();
  if (!arm) return std::nullopt;
  Next next{TrialKind::kConfirm, {}, arm};
  next.draft.assignment = trials.at(*arm).assignment;
  next.draft.ds_config = BestConfigOf(*arm);
  return next;
}

bool Search::State::HasLostMany() const {
  return Dropped().size() >= num_forgiven + kMostLost;
}

// Whether all finalists have dropped out, and others can take their places.
bool Search::State::HasLostFinalists() const {
  if (!confirms || Compares() || !end_reason.empty() || HasLostMany()) return false;
  const std::vector<TrialId> arms = confirmation->Arms();
  const bool has_finalist =
      std::ranges::any_of(arms, [this](TrialId arm) { return arm != submitted; });
  return !has_finalist && Arms().size() > 1;
}

// Whether a trial has succeeded and not dropped out.
bool Search::State::MayWin(const std::optional<TrialId>& id) const {
  return id && trials.at(*id).state == TrialState::kSucceeded && !Dropped().contains(*id);
}

// Why no configuration that was measured can be the answer, "" if one can. A check has none.
std::string Search::State::WhyNoAnswer() const {
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

// What is measured again: the submitted configuration and the finalists that may beat it; nothing
// if there is nothing to compare. A check measures its candidate alone if the submitted one does
// not fit.
std::vector<TrialId> Search::State::Arms() const {
  std::vector<TrialId> arms;
  if (MayWin(submitted)) arms.push_back(*submitted);
  if (Compares()) {
    const bool is_alone = submitted && trials.at(*submitted).state == TrialState::kInfeasible;
    if (!MayWin(candidate) || (arms.empty() && !is_alone)) return {};
    arms.push_back(*candidate);
    return arms;
  }
  for (const TrialId id : Find().finalists) {
    if (std::ranges::find(arms, id) == arms.end()) arms.push_back(id);
  }
  if (!end_reason.empty()) arms.resize(NumArmsInLimits(trials, arms, spec));
  return arms.size() > 1 ? arms : std::vector<TrialId>();
}

Findings Search::State::Find() const {
  Findings found;
  const std::map<TrialId, std::string> dropped = Dropped();
  if (proposer) found.conclusion = proposer->Conclude();
  std::vector<TrialId> next;  // Of the method, should its finalists have dropped out.
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

std::map<TrialId, std::string> Search::State::Dropped() const {
  std::map<TrialId, std::string> dropped =
      DroppedOut(trials, confirmation ? &*confirmation : nullptr);
  dropped.insert(left_out.begin(), left_out.end());
  return dropped;
}

// Whether a configuration that needs no more memory than this one has run out of it in a later run,
// and this one has not run again.
bool Search::State::NeedsWhatRanOut(const Trial& trial) const {
  if (trial.id == submitted) return false;  // It is the last resort.
  const bool ran_again = std::ranges::any_of(trials, [&](const auto& entry) {
    return entry.second.confirms == trial.id && entry.second.state == TrialState::kSucceeded;
  });
  if (ran_again) return false;
  const std::string& metric = spec.options.metric;
  const auto peak_of = [&](const Trial& of) { return ValueAtBest(of, metric, "peak_bytes"); };
  return std::ranges::any_of(trials, [&](const auto& entry) {
    const Trial& run = entry.second;
    const bool is_later = run.kind == TrialKind::kConfirm || run.kind == TrialKind::kSoak;
    if (!is_later || run.state != TrialState::kInfeasible || !run.points.empty()) return false;
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

Json Search::State::BestConfigOf(TrialId id) const {
  const Trial& trial = trials.at(id);
  const PointResult* best = BestPoint(trial, spec.options.metric);
  return best == nullptr ? trial.ds_config : ConfigAt(trial, best->point, spec.slots_per_trial);
}

}  // namespace dsat
