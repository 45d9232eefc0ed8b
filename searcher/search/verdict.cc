// Reads the confirmation if there is one, and the measurements of the search if there is none.
#include "searcher/search/verdict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace dsat {
namespace {

// The part of the pick's speed that a safe alternative has at least.
constexpr double kSafeWithin = 0.97;
// An arm that is slower by more than this in the mean does not count as equally fast, however noisy
// it is.
constexpr double kAsFast = 0.99;

std::optional<double> SearchSpeed(const SearchState& search, TrialId id) {
  return SpeedOf(search.trials.at(id), search.spec.options.metric);
}

// The speeds of two trials: in the confirmation if both are arms of it, else what the method, which
// knows the drift of the machine, believes of both, else what was measured in the search.
std::pair<std::optional<double>, std::optional<double>> SpeedsOf(const SearchState& search,
                                                                 const Findings& found, TrialId a,
                                                                 TrialId b) {
  const std::optional<Confirmation>& confirmation = search.confirmation;
  if (confirmation && confirmation->NumRounds() > 0) {
    const std::vector<TrialId> arms = confirmation->Arms();
    const auto is_arm = [&arms](TrialId id) { return std::ranges::find(arms, id) != arms.end(); };
    if (is_arm(a) && is_arm(b)) return {confirmation->MeanSpeed(a), confirmation->MeanSpeed(b)};
  }
  if (found.speeds.contains(a) && found.speeds.contains(b))
    return {found.speeds.at(a), found.speeds.at(b)};
  return {SearchSpeed(search, a), SearchSpeed(search, b)};
}

std::optional<int64_t> PeakBytes(const SearchState& search, TrialId id) {
  const auto peak = ValueAtBest(search.trials.at(id), search.spec.options.metric, "peak_bytes");
  return peak ? std::optional(static_cast<int64_t>(*peak)) : std::nullopt;
}

bool IsTie(const Factor& factor) {
  return factor.has_interval() && factor.low <= 1 && factor.high >= 1;
}

// The arm that changes least of the submitted configuration among those that are as fast as `best`:
// first by class, then whether the global batch changes, then by the number of keys. Where the
// submitted one is an arm, only an arm that is certainly faster can take its place.
TrialId LeastChanged(const SearchState& search, const Confirmation& confirmation, TrialId best,
                     bool has_submitted) {
  const auto change_of = [&](TrialId id) {
    const LossCheck change = NoLossCheck(search, id);
    const Json& submitted = search.trials.at(search.submitted.value_or(id)).ds_config;
    const bool other_batch = GlobalBatch(search.BestConfigOf(id)) != GlobalBatch(submitted);
    return std::tuple(change.changes, other_batch, change.num_changed_keys);
  };
  TrialId least = best;
  for (const TrialId arm : confirmation.Arms()) {
    if (arm == best || arm == search.submitted) continue;
    const Factor factor = confirmation.Compare(arm, best);
    if (!IsTie(factor) || factor.value < kAsFast) continue;
    if (has_submitted && !confirmation.Compare(arm, *search.submitted).is_gain()) continue;
    if (change_of(arm) < change_of(least)) least = arm;
  }
  return least;
}

// The arm that the method likes best among those that the rounds cannot tell from `best`: the
// method also knows what was measured before. `best` if the method has no opinion.
TrialId Favorite(const SearchState& search, const Findings& found, const Confirmation& confirmation,
                 TrialId best, bool has_submitted) {
  if (found.finalists.empty()) return best;
  const TrialId favorite = found.finalists.front();
  if (!found.speeds.contains(favorite)) return best;
  const std::vector<TrialId> arms = confirmation.Arms();
  const bool is_arm = std::ranges::find(arms, favorite) != arms.end();
  if (!is_arm || favorite == search.submitted) return best;
  const auto is_gain = [&](TrialId arm) {
    return has_submitted && confirmation.Compare(arm, *search.submitted).is_gain();
  };
  if (is_gain(best) && !is_gain(favorite)) return best;
  return IsTie(confirmation.Compare(favorite, best)) ? favorite : best;
}

// The pick by the rounds of the confirmation. REQUIRES: a round is complete, and an arm besides the
// submitted configuration is left.
void PickConfirmed(const SearchState& search, const Findings& found,
                   const Confirmation& confirmation, Verdict& verdict) {
  const std::vector<TrialId> arms = confirmation.Arms();
  const std::optional<TrialId> submitted = search.submitted;
  const bool has_submitted = submitted && std::ranges::find(arms, *submitted) != arms.end();
  std::optional<TrialId> best = confirmation.BestOther();
  best = Favorite(search, found, confirmation, *best, has_submitted);
  best = LeastChanged(search, confirmation, *best, has_submitted);
  verdict.num_rounds = confirmation.NumRounds();
  verdict.pick = best;
  if (has_submitted) {
    verdict.factor = confirmation.Compare(*best, *submitted);
    // A single round, which has no interval, decides nothing: what it has measured is the answer.
    verdict.nothing_better =
        verdict.factor->has_interval() ? !verdict.factor->is_gain() : verdict.factor->value <= 1;
    if (verdict.nothing_better) verdict.pick = submitted;
    if (verdict.nothing_better && verdict.factor->has_interval())
      verdict.factor = confirmation.Compare(*confirmation.BestOther(), *submitted);
  }
  for (const TrialId arm : arms) {
    if (arm == *verdict.pick) continue;
    if (IsTie(confirmation.Compare(arm, *verdict.pick))) verdict.ties.push_back(arm);
  }
}

void PickMeasured(const SearchState& search, const std::vector<TrialId>& finalists,
                  Verdict& verdict) {
  if (finalists.empty()) return;
  verdict.pick = finalists.front();
  const std::optional<TrialId> submitted = search.submitted;
  verdict.nothing_better = submitted == verdict.pick;
  if (verdict.nothing_better) return;
  if (!submitted || search.trials.at(*submitted).state != TrialState::kSucceeded) return;
  if (search.Dropped().contains(*submitted)) return;
  const auto was = SearchSpeed(search, *submitted), is = SearchSpeed(search, *verdict.pick);
  if (!was || !is) return;
  verdict.nothing_better = *was >= *is;
  if (verdict.nothing_better) {
    verdict.pick = submitted;
  } else {
    verdict.factor = Factor{.value = *is / *was};
  }
}

// The losses of a configuration by its latest run, `last`, if that has succeeded.
LossCheck CheckOf(const SearchState& search, TrialId id, const std::optional<TrialId>& last) {
  if (!search.spec.options.check_losses) return NoLossCheck(search, id);
  Trial run = search.trials.at(last.value_or(id));
  if (run.state != TrialState::kSucceeded) run = search.trials.at(id);
  run.confirms = id;
  run.ds_config = search.BestConfigOf(id);
  return CheckLosses(search, run);
}

// The trial with the least peak memory below that of the pick, of those that are about as fast and
// are not known to train otherwise.
std::optional<Alternative> Safest(const SearchState& search, const Findings& found, TrialId pick) {
  const std::map<TrialId, std::string> dropped = search.Dropped();
  const auto pick_peak = PeakBytes(search, pick);
  if (!pick_peak) return std::nullopt;
  std::vector<std::pair<int64_t, TrialId>> safer;
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kSearch && trial.kind != TrialKind::kSubmitted) continue;
    if (trial.state != TrialState::kSucceeded || dropped.contains(id)) continue;
    const auto [speed, pick_speed] = SpeedsOf(search, found, id, pick);
    const auto peak = PeakBytes(search, id);
    if (!speed || !pick_speed || *speed < kSafeWithin * *pick_speed) continue;
    if (!peak || *peak >= *pick_peak) continue;
    safer.emplace_back(*peak, id);
  }
  std::ranges::sort(safer);
  for (const auto& [peak, id] : safer) {
    Alternative safest{"safest", id, CheckOf(search, id, search.SoakOf(id))};
    if (safest.losses.result != LossCheck::Result::kDiffers) return safest;
  }
  return std::nullopt;
}

// The arm with the largest mean speed in the confirmation, likewise.
std::optional<Alternative> Fastest(const SearchState& search, TrialId pick) {
  const Confirmation& confirmation = *search.confirmation;
  std::vector<std::pair<double, TrialId>> faster;
  for (const TrialId arm : confirmation.Arms()) {
    const double speed = confirmation.MeanSpeed(arm);
    if (speed > confirmation.MeanSpeed(pick)) faster.emplace_back(-speed, arm);
  }
  std::ranges::sort(faster);
  for (const auto& [speed, id] : faster) {
    Alternative fastest{"fastest", id, CheckOf(search, id, search.SoakOf(id))};
    if (fastest.losses.result != LossCheck::Result::kDiffers) return fastest;
  }
  return std::nullopt;
}

void AddAlternatives(const SearchState& search, const Findings& found, Verdict& verdict) {
  const TrialId pick = *verdict.pick;
  const auto add = [&verdict](std::optional<Alternative> alternative) {
    if (alternative) verdict.alternatives.push_back(*std::move(alternative));
  };
  if (verdict.num_rounds > 0) add(Fastest(search, pick));
  add(Safest(search, found, pick));
}

// Adds what is known of the pick from its last run.
void AddProof(const SearchState& search, Verdict& verdict) {
  const SearchOptions& options = search.spec.options;
  verdict.soak = search.SoakOf(*verdict.pick);
  const bool is_short =
      !verdict.soak || search.trials.at(*verdict.soak).steps <= options.end_profile_step + 1;
  if (is_short && options.soak_steps > 0) verdict.no_soak = search.end_reason;
  verdict.losses = CheckOf(search, *verdict.pick, verdict.soak);
}

// The search has cost slot-seconds; the samples of every submitted step save some with the pick.
std::optional<int64_t> RepaidAfter(const SearchState& search, const Verdict& verdict) {
  if (!verdict.factor || verdict.nothing_better || verdict.factor->value <= 1) return std::nullopt;
  // A shorter step of a smaller batch saves nothing.
  const auto batch = static_cast<double>(GlobalBatch(search.BestConfigOf(*verdict.pick)));
  const auto submitted_batch =
      static_cast<double>(GlobalBatch(search.trials.at(*search.submitted).ds_config));
  if (SmallerIsBetter(search.spec.options.metric) && batch != submitted_batch) return std::nullopt;
  const std::string& metric = search.spec.options.metric;
  // ms, as confirmed if that was done: a launch of the search may have been a lucky one.
  const auto latency_of = [&](TrialId id) -> std::optional<double> {
    double sum = 0;
    int64_t count = 0;
    for (const auto& [other, trial] : search.trials) {
      if (trial.kind != TrialKind::kConfirm || trial.confirms != id) continue;
      const auto latency = ValueAtBest(trial, metric, "latency");
      sum += latency.value_or(0);
      count += latency ? 1 : 0;
    }
    if (verdict.num_rounds > 0 && count > 0) return sum / static_cast<double>(count);
    return ValueAtBest(search.trials.at(id), metric, "latency");
  };
  const auto latency = latency_of(*verdict.pick), was = latency_of(*search.submitted);
  if (!latency || !was || verdict.device_seconds <= 0) return std::nullopt;
  // The factor of a pass is not that of the step.
  const bool is_of_step = !SmallerIsBetter(metric) || metric == "latency";
  const double saved_ms = is_of_step ? *latency * (verdict.factor->value - 1) : *was - *latency;
  if (saved_ms <= 0) return std::nullopt;
  const double saved_s =
      saved_ms / 1e3 * (submitted_batch / batch) * static_cast<double>(search.spec.slots_per_trial);
  return static_cast<int64_t>(std::ceil(verdict.device_seconds / saved_s));
}

}  // namespace

Verdict VerdictOf(const SearchState& search) {
  Verdict verdict;
  const Findings found = search.Find();
  const std::optional<Confirmation>& confirmation = search.confirmation;
  // Where all finalists have dropped out, the measurements of the search decide.
  const bool confirmed = confirmation && !confirmation->Arms().empty() &&
                         confirmation->NumRounds() > 0 && confirmation->BestOther();
  if (confirmed) {
    PickConfirmed(search, found, *confirmation, verdict);
  } else {
    PickMeasured(search, found.finalists, verdict);
  }
  for (const auto& dropped : search.Dropped())
    verdict.left_out.emplace_back(dropped);
  verdict.drift = found.conclusion.drift;
  verdict.warm_start = found.conclusion.warm_start;
  verdict.device_seconds = search.SlotSeconds();
  if (!verdict.pick) return verdict;
  if (search.proposer) {
    const Trial& pick = search.trials.at(*verdict.pick);
    if (FailedLikeAllOthers(search) == nullptr) verdict.others = search.proposer->BoundOthers(pick);
    verdict.bound = search.proposer->BoundOf(pick);
  }
  verdict.speed =
      confirmed ? confirmation->MeanSpeed(*verdict.pick) : SearchSpeed(search, *verdict.pick);
  if (confirmed) verdict.log_speed = confirmation->LogSpeed(*verdict.pick);
  AddAlternatives(search, found, verdict);
  AddProof(search, verdict);
  auto peak = PeakBytes(search, *verdict.pick);
  if (peak && verdict.soak) peak = std::max(*peak, PeakBytes(search, *verdict.soak).value_or(0));
  // On the CPU the peak of a script is its whole process, which the budget does not bound.
  const int64_t budget = search.profile ? search.profile->device_memory_bytes : 0;
  if (peak && *peak <= budget) verdict.free_bytes = budget - *peak;
  verdict.repaid_after_steps = RepaidAfter(search, verdict);
  return verdict;
}

const Trial* FailedLikeAllOthers(const SearchState& search) {
  const Trial* last = nullptr;
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kSearch) continue;
    if (trial.state == TrialState::kSucceeded) return nullptr;
    if (trial.state == TrialState::kFailed) last = &trial;
  }
  return last;
}

Json ToJson(const Factor& factor) {
  Json json{{"value", factor.value}, {"low", nullptr}, {"high", nullptr}};
  if (factor.has_interval()) {
    json["low"] = factor.low;
    json["high"] = factor.high;
  }
  return json;
}

static Json ToJson(const MachineDrift& drift) {
  return {{"percent", 100 * drift.change},
          {"standard_error", 100 * drift.error},
          {"hours", drift.hours},
          {"percent_per_hour", 100 * drift.change / drift.hours},
          {"standard_error_per_hour", 100 * drift.error / drift.hours}};
}

Json ToJson(const Verdict& verdict) {
  const auto optional = [](const auto& value) { return value ? Json(*value) : Json(); };
  Json alternatives = Json::object(), alternatives_losses = Json::object();
  for (const Alternative& alternative : verdict.alternatives) {
    alternatives[alternative.name] = alternative.trial;
    alternatives_losses[alternative.name] = ToJson(alternative.losses);
  }
  Json left_out = Json::object();
  for (const auto& [trial, reason] : verdict.left_out)
    left_out[std::to_string(trial)] = reason;
  return {
      {"trial", optional(verdict.pick)},
      {"speed", optional(verdict.speed)},
      {"speed_error", verdict.log_speed ? Json(std::sqrt(verdict.log_speed->variance)) : Json()},
      {"speed_dof", verdict.log_speed ? Json(verdict.log_speed->dof) : Json()},
      {"factor", verdict.factor ? ToJson(*verdict.factor) : Json()},
      {"confirm_rounds", verdict.num_rounds},
      {"left_out", std::move(left_out)},
      {"nothing_better", verdict.nothing_better},
      {"indistinguishable", verdict.ties},
      {"alternatives", std::move(alternatives)},
      {"alternatives_losses", std::move(alternatives_losses)},
      {"free_device_bytes", optional(verdict.free_bytes)},
      {"losses", ToJson(verdict.losses)},
      {"soak", optional(verdict.soak)},
      {"no_soak", verdict.no_soak},
      {"device_seconds", verdict.device_seconds},
      {"repaid_after_steps", optional(verdict.repaid_after_steps)},
      {"others_at_most", verdict.others ? Json(verdict.others->at_most) : Json()},
      {"configurations_compared", verdict.others ? Json(verdict.others->num_compared) : Json()},
      {"bound", verdict.bound},
      {"machine_drift", verdict.drift ? ToJson(*verdict.drift) : Json()},
      {"warm_start", verdict.warm_start}};
}

}  // namespace dsat
