// Reads the confirmation if there is one, and the measurements of the search if there is none.
#include "searcher/search/verdict.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace dsat {
namespace {

// The part of the pick's speed that a safe alternative has at least.
constexpr double kSafeWithin = 0.97;

std::optional<double> SearchSpeed(const SearchState& search, TrialId id) {
  return SpeedOf(search.trials.at(id), search.spec.options.metric);
}

// The speeds of two trials relative to each other: in the rounds that both have, else what the
// method, which knows the drift of the machine, believes of both, else as measured in the search.
std::pair<std::optional<double>, std::optional<double>> SpeedsOf(const SearchState& search,
                                                                 const Findings& found, TrialId a,
                                                                 TrialId b) {
  const std::optional<Confirmation>& confirmation = search.confirmation;
  if (const auto factor = confirmation ? confirmation->Believe(a, b) : std::nullopt)
    return {std::exp(factor->mean), 1};
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

// Decides between the submitted configuration and the best other one by what is known of the
// factor.
void Decide(const SearchState& search, TrialId best, const Posterior& belief, Factor factor,
            Verdict& verdict) {
  const bool is_gain = belief.Utility() > 0;
  verdict.factor = factor;
  verdict.nothing_better = !is_gain;
  verdict.pick = is_gain ? best : *search.submitted;
  if (is_gain) verdict.certainty = factor.is_gain() ? Certainty::kProven : Certainty::kProbable;
}

// The pick by the rounds of the confirmation. REQUIRES: it has a best finalist.
void PickConfirmed(const SearchState& search, const Confirmation& confirmation, Verdict& verdict) {
  const std::vector<TrialId> arms = confirmation.Arms();
  const std::optional<TrialId> submitted = search.submitted;
  const TrialId best = *confirmation.BestOther();
  const auto belief = submitted ? confirmation.Believe(best, *submitted) : std::nullopt;
  verdict.pick = best;
  verdict.num_rounds = confirmation.NumRounds();
  if (belief && std::ranges::find(arms, *submitted) != arms.end()) {
    Decide(search, best, *belief, confirmation.Compare(best, *submitted), verdict);
    verdict.num_rounds = verdict.factor->rounds;
    verdict.two_kinds = confirmation.HasTwoKinds();
  }
  for (const TrialId arm : arms) {
    if (arm != *verdict.pick && confirmation.Believe(arm, *verdict.pick) &&
        IsTie(confirmation.Compare(arm, *verdict.pick)))
      verdict.ties.push_back(arm);
  }
}

// The pick by the measurements of the search.
void PickMeasured(const SearchState& search, const Findings& found, Verdict& verdict) {
  if (found.finalists.empty()) return;
  const TrialId best = found.finalists.front();
  verdict.pick = best;
  const std::optional<TrialId> submitted = search.submitted;
  verdict.nothing_better = submitted == verdict.pick;
  if (verdict.nothing_better || !search.MayWin(submitted)) return;
  const auto was = SearchSpeed(search, *submitted), is = SearchSpeed(search, best);
  if (!was || !is) return;
  // The best of many measurements is lucky by as much as the largest of so many draws is above the
  // mean (Blom 1958, "Statistical Estimates and Transformed Beta-Variables").
  const auto count =
      static_cast<double>(std::ranges::count_if(search.trials, [](const auto& entry) {
        return entry.second.kind == TrialKind::kSearch &&
               entry.second.state == TrialState::kSucceeded;
      }));
  const LaunchNoise noise = search.Noise();
  const double luck = noise.sd * StudentQuantile((count - 0.375) / (count + 0.25), noise.dof);
  const Posterior belief{
      .mean = std::log(*is / *was) - luck, .scale = std::sqrt(2) * noise.sd, .dof = noise.dof};
  Decide(search, best, belief, Factor{.value = *is / *was, .faster = belief.Faster()}, verdict);
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

// The arm that was fastest in the rounds, likewise.
std::optional<Alternative> Fastest(const SearchState& search, TrialId pick) {
  const Confirmation& confirmation = *search.confirmation;
  std::vector<std::pair<double, TrialId>> faster;
  for (const TrialId arm : confirmation.Arms()) {
    const auto factor = arm == pick ? std::nullopt : confirmation.Believe(arm, pick);
    if (factor && factor->mean > 0) faster.emplace_back(-factor->mean, arm);
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
  if (search.confirmation) add(Fastest(search, pick));
  add(Safest(search, found, pick));
}

// Adds what is known of the pick from its longer run.
void AddProof(const SearchState& search, Verdict& verdict) {
  const SearchOptions& options = search.spec.options;
  verdict.soak = search.SoakOf(*verdict.pick);
  verdict.losses = CheckOf(search, *verdict.pick, verdict.soak);
  const std::string limit = search.SecondsLeft() < search.LaunchSeconds(*verdict.pick)
                                ? "no time was left for it"
                                : search.end_reason;
  if (!verdict.soak && options.soak_steps > 0) verdict.no_soak = limit;
  if (verdict.num_rounds == 0 && options.confirm_rounds > 0) verdict.no_confirmation = limit;
  if (!verdict.soak || !verdict.log_speed) return;
  // The rounds without the soak, whose noise is that of all.
  double sum = 0, count = 0;
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kConfirm || trial.confirms != verdict.pick) continue;
    const auto speed = SearchSpeed(search, id);
    if (trial.state != TrialState::kSucceeded || !speed) continue;
    sum += std::log(*speed);
    ++count;
  }
  const auto soaked = SearchSpeed(search, *verdict.soak);
  if (!soaked || count == 0) return;
  constexpr double kDeviations = 3;
  const double launches = static_cast<double>(verdict.log_speed->dof + 1);
  const double change = std::log(*soaked) - sum / count;
  const double error = std::sqrt(verdict.log_speed->variance * launches * (1 + 1 / count));
  if (std::abs(change) > kDeviations * error) verdict.soak_speed = std::exp(change);
}

// The mean load by other processes of the launches that confirm, or of those of the search.
double OthersOf(const SearchState& search) {
  double sum = 0, count = 0;
  for (const bool confirms : {true, false}) {
    for (const auto& [id, trial] : search.trials) {
      if (RunsAgain(trial.kind) != confirms || trial.state != TrialState::kSucceeded) continue;
      sum += trial.times.others;
      ++count;
    }
    if (count > 0) return sum / count;
  }
  return 0;
}

// The search has cost slot-seconds; the samples of every submitted step save some with the pick.
std::optional<int64_t> RepaidAfter(const SearchState& search, const Verdict& verdict) {
  if (verdict.certainty == Certainty::kNone) return std::nullopt;
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
  const Factor& factor = *verdict.factor;
  const double surely = factor.is_gain() ? factor.low : factor.value;
  const double saved_ms = is_of_step ? *latency * (surely - 1) : *was - *latency;
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
  const bool confirmed = confirmation && confirmation->BestOther();
  if (confirmed) {
    PickConfirmed(search, *confirmation, verdict);
  } else {
    PickMeasured(search, found, verdict);
  }
  for (const auto& dropped : search.Dropped())
    verdict.left_out.emplace_back(dropped);
  verdict.num_considered = found.conclusion.num_considered;
  verdict.drift = found.conclusion.drift;
  verdict.warm_start = found.conclusion.warm_start;
  verdict.device_seconds = search.SlotSeconds();
  if (!verdict.pick) return verdict;
  if (search.proposer) {
    const Trial& pick = search.trials.at(*verdict.pick);
    if (FailedLikeAllOthers(search) == nullptr)
      verdict.probability_near_best = search.proposer->ProbabilityNearBest(pick);
    verdict.bound = search.proposer->BoundOf(pick);
  }
  verdict.speed =
      confirmed ? confirmation->MeanSpeed(*verdict.pick) : SearchSpeed(search, *verdict.pick);
  if (confirmed) verdict.log_speed = confirmation->LogSpeed(*verdict.pick);
  AddAlternatives(search, found, verdict);
  AddProof(search, verdict);
  verdict.others = OthersOf(search);
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

std::string ToString(Certainty certainty) {
  constexpr const char* kNames[] = {"proven", "probable", "none"};
  return kNames[static_cast<size_t>(certainty)];
}

Json ToJson(const Factor& factor) {
  Json json{{"value", factor.value},
            {"low", nullptr},
            {"high", nullptr},
            {"probability_faster", factor.faster}};
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
      {"certainty", ToString(verdict.certainty)},
      {"nothing_better", verdict.nothing_better},
      {"indistinguishable", verdict.ties},
      {"alternatives", std::move(alternatives)},
      {"alternatives_losses", std::move(alternatives_losses)},
      {"free_device_bytes", optional(verdict.free_bytes)},
      {"losses", ToJson(verdict.losses)},
      {"soak", optional(verdict.soak)},
      {"no_soak", verdict.no_soak},
      {"no_confirmation", verdict.no_confirmation},
      {"soak_speed", optional(verdict.soak_speed)},
      {"two_kinds_of_launches", verdict.two_kinds},
      {"other_processes", verdict.others},
      {"device_seconds", verdict.device_seconds},
      {"repaid_after_steps", optional(verdict.repaid_after_steps)},
      {"probability_within_1_percent", optional(verdict.probability_near_best)},
      {"configurations_considered", verdict.num_considered},
      {"bound", verdict.bound},
      {"machine_drift", verdict.drift ? ToJson(*verdict.drift) : Json()},
      {"warm_start", verdict.warm_start}};
}

}  // namespace dsat
