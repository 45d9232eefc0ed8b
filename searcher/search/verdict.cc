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
    if (arm != *verdict.pick && arm != submitted && confirmation.Believe(arm, *verdict.pick) &&
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

// Offers the first one of these trials, the best of which has the smallest value, that is not known
// to train otherwise.
void Offer(const SearchState& search, const char* name,
           std::vector<std::pair<double, TrialId>> trials, Verdict& verdict) {
  std::ranges::sort(trials);
  for (const auto& [value, id] : trials) {
    Alternative other{name, id, CheckLossesOf(search, id)};
    if (other.losses.result == LossCheck::Result::kDiffers) continue;
    verdict.alternatives.push_back(std::move(other));
    return;
  }
}

// The arm that was fastest in the rounds, and the trial with the least peak memory below that of
// the pick, of those that are about as fast.
void AddAlternatives(const SearchState& search, const Findings& found, Verdict& verdict) {
  const TrialId pick = *verdict.pick;
  std::vector<std::pair<double, TrialId>> faster, safer;
  for (const TrialId arm :
       search.confirmation ? search.confirmation->Arms() : std::vector<TrialId>()) {
    const auto factor = arm == pick ? std::nullopt : search.confirmation->Believe(arm, pick);
    if (factor && factor->mean > 0) faster.emplace_back(-factor->mean, arm);
  }
  Offer(search, "fastest", std::move(faster), verdict);
  const std::map<TrialId, std::string> dropped = search.Dropped();
  const auto pick_peak = PeakBytes(search, pick);
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kSearch && trial.kind != TrialKind::kSubmitted) continue;
    if (trial.state != TrialState::kSucceeded || dropped.contains(id)) continue;
    const auto [speed, pick_speed] = SpeedsOf(search, found, id, pick);
    const auto peak = PeakBytes(search, id);
    if (!speed || !pick_speed || *speed < kSafeWithin * *pick_speed) continue;
    if (peak && pick_peak && *peak < *pick_peak) safer.emplace_back(static_cast<double>(*peak), id);
  }
  Offer(search, "safest", std::move(safer), verdict);
}

// Adds what is known of the pick from its longer run.
void AddProof(const SearchState& search, Verdict& verdict) {
  const SearchOptions& options = search.spec.options;
  verdict.soak = search.SoakOf(*verdict.pick);
  verdict.losses = CheckLossesOf(search, *verdict.pick);
  const std::string limit = search.SecondsLeft() < search.LaunchSeconds(*verdict.pick)
                                ? "no time was left for it"
                                : search.end_reason;
  if (!verdict.soak && options.soak_steps > 0) verdict.no_soak = limit;
  if (verdict.num_rounds == 0 && options.confirm_rounds > 0) verdict.no_confirmation = limit;
  // Its speed beside that of the other launches of the pick.
  const auto soaked = verdict.soak ? SearchSpeed(search, *verdict.soak) : std::nullopt;
  std::vector<double> others;
  for (const auto& [id, trial] : search.trials) {
    const auto speed = SearchSpeed(search, id);
    if (trial.kind == TrialKind::kConfirm && trial.confirms == verdict.pick && speed)
      others.push_back(std::log(*speed));
  }
  if (!soaked || others.empty()) return;
  constexpr double kDeviations = 3;
  const Center center = CenterOf(others);
  const auto count = static_cast<double>(others.size());
  const double noise = std::max(search.Noise().sd, std::sqrt(center.variance * count));
  const double change = std::log(*soaked) - center.mean;
  if (std::abs(change) > kDeviations * noise * std::sqrt(1 + 1 / count))
    verdict.soak_speed = std::exp(change);
}

std::optional<LargerBatch> LargerBatchOf(const SearchState& search, const Verdict& verdict) {
  for (const TrialId id : search.reruns) {
    const Trial& run = search.trials.at(id);
    const auto speed = SearchSpeed(search, id);
    if (run.kind == TrialKind::kLarger && run.confirms == verdict.pick && speed && verdict.speed)
      return LargerBatch{id, GlobalBatch(run.ds_config), *speed / *verdict.speed};
  }
  return std::nullopt;
}

// The mean load by other processes of the launches that confirm, or of all without them.
double OthersOf(const SearchState& search, bool confirmed) {
  double sum = 0, count = 0;
  for (const auto& [id, trial] : search.trials) {
    if (confirmed && !RunsAgain(trial.kind)) continue;
    sum += trial.times.others;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

// The search has cost slot-seconds; every submitted step of the pick saves some.
std::optional<int64_t> RepaidAfter(const SearchState& search, const Verdict& verdict) {
  if (verdict.certainty == Certainty::kNone) return std::nullopt;
  const std::string& metric = search.spec.options.metric;
  const auto batch =
      static_cast<double>(GlobalBatch(search.trials.at(*search.submitted).ds_config));
  const Factor& factor = *verdict.factor;
  const double surely = factor.is_gain() ? factor.low : factor.value;
  // Samples of a smaller batch that take less time save nothing, nor does a pass alone.
  double step_s = 0;
  if (!SmallerIsBetter(metric) &&
      ValueAtBest(search.trials.at(*verdict.pick), metric, "throughput"))
    step_s = batch / *verdict.speed;
  const bool same_batch = batch == GlobalBatch(search.BestConfigOf(*verdict.pick));
  if (metric == "latency" && same_batch) step_s = 1e-3 / *verdict.speed;
  const double saved_s = step_s * (surely - 1) * static_cast<double>(search.spec.slots_per_trial);
  if (saved_s <= 0 || verdict.device_seconds <= 0) return std::nullopt;
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
  verdict.drift = found.conclusion.drift;
  verdict.warm_start = found.conclusion.warm_start;
  verdict.device_seconds = search.SlotSeconds();
  if (!verdict.pick) return verdict;
  if (search.proposer) {
    const Trial& pick = search.trials.at(*verdict.pick);
    const Method& method = search.proposer->method();
    if (FailedLikeAllOthers(search) == nullptr) verdict.others = method.BoundOthers(pick);
    verdict.bound = method.BoundOf(pick);
  }
  verdict.speed =
      confirmed ? confirmation->MeanSpeed(*verdict.pick) : SearchSpeed(search, *verdict.pick);
  if (confirmed) verdict.log_speed = confirmation->LogSpeed(*verdict.pick);
  AddAlternatives(search, found, verdict);
  AddProof(search, verdict);
  verdict.other_load = OthersOf(search, verdict.num_rounds > 0);
  auto peak = PeakBytes(search, *verdict.pick);
  if (peak && verdict.soak) peak = std::max(*peak, PeakBytes(search, *verdict.soak).value_or(0));
  // On the CPU the peak of a script is its whole process, which the budget does not bound.
  const int64_t budget = search.profile ? search.profile->device_memory_bytes : 0;
  if (peak && *peak <= budget) verdict.free_bytes = budget - *peak;
  verdict.repaid_after_steps = RepaidAfter(search, verdict);
  verdict.larger_batch = LargerBatchOf(search, verdict);
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
      {"other_processes", verdict.other_load},
      {"device_seconds", verdict.device_seconds},
      {"repaid_after_steps", optional(verdict.repaid_after_steps)},
      {"larger_batch", verdict.larger_batch
                           ? Json{{"trial", verdict.larger_batch->trial},
                                  {"train_batch_size", verdict.larger_batch->train_batch_size},
                                  {"factor", verdict.larger_batch->factor}}
                           : Json()},
      {"others_at_most", verdict.others ? Json(verdict.others->at_most) : Json()},
      {"configurations_compared", verdict.others ? Json(verdict.others->num_compared) : Json()},
      {"bound", verdict.bound},
      {"machine_drift", verdict.drift ? ToJson(*verdict.drift) : Json()},
      {"warm_start", verdict.warm_start}};
}

}  // namespace dsat
