// Alternating rounds and what they say, on the logarithm of the speed.
#include "searcher/search/confirm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace dsat {
namespace {

constexpr double kError = 0.05;
constexpr int64_t kMostFailures = 2;
// So many rounds seldom agree by chance, even where launches are of two kinds.
constexpr int64_t kManyRounds = 6;
// A configuration whose search measurement is slower than this part of the best is no finalist.
constexpr double kMayWin = 0.9;

}  // namespace

std::optional<double> SpeedOf(const Trial& trial, const std::string& metric) {
  if (SmallerIsBetter(metric)) {
    const std::optional<double> value = MetricValue(trial, metric);
    return value && *value > 0 ? std::optional(1 / *value) : std::nullopt;
  }
  const std::optional<double> throughput = ValueAtBest(trial, metric, "throughput");
  const std::optional<double> value = throughput ? throughput : MetricValue(trial, metric);
  return value && *value > 0 ? value : std::nullopt;
}

std::vector<TrialId> FastestTrials(const std::vector<const Trial*>& trials,
                                   std::optional<TrialId> submitted, const std::string& metric) {
  std::vector<std::pair<double, TrialId>> by_speed;
  for (const Trial* trial : trials) {
    const std::optional<double> speed = SpeedOf(*trial, metric);
    if (trial->state == TrialState::kSucceeded && speed) by_speed.emplace_back(-*speed, trial->id);
  }
  std::ranges::sort(by_speed);
  std::vector<TrialId> fastest;
  bool has_other = false;  // Than the submitted configuration, to compare it with.
  for (const auto& [speed, id] : by_speed) {
    const bool may_win = speed <= kMayWin * by_speed[0].first;
    if (fastest.size() >= kMostFinalists || (has_other && !may_win)) break;
    fastest.push_back(id);
    has_other = has_other || id != submitted;
  }
  return fastest;
}

int64_t NumLooks(const std::map<TrialId, Trial>& trials, const std::vector<TrialId>& arms,
                 const SearchOptions& options) {
  constexpr double kShortSeconds = 10;
  constexpr int64_t kTimesAsMany = 2;
  double round_s = 0;
  for (const TrialId arm : arms)
    round_s += trials.at(arm).times.ended_s - trials.at(arm).times.started_s;
  // Trials that were told have no times.
  const bool is_short =
      round_s > 0 && round_s * static_cast<double>(options.confirm_rounds) < kShortSeconds;
  return options.confirm_looks * (is_short && options.confirm_looks > 1 ? kTimesAsMany : 1);
}

size_t NumArmsInLimits(const std::map<TrialId, Trial>& trials, const std::vector<TrialId>& arms,
                       const ExperimentSpec& spec) {
  const SearchOptions& options = spec.options;
  double most_s = options.max_time_s.value_or(INFINITY);
  if (options.max_device_hours) {
    const auto slots = static_cast<double>(spec.slots_per_trial);
    most_s = std::min(most_s, *options.max_device_hours * 3600 / slots);
  }
  double seconds = 0;
  size_t count = 0;
  for (const TrialId arm : arms) {
    const TrialTimes& times = trials.at(arm).times;
    seconds += static_cast<double>(options.confirm_rounds) * (times.ended_s - times.started_s);
    if (count >= 2 && seconds > kConfirmsPart * most_s) break;
    ++count;
  }
  return count;
}

bool ConfirmsTooLong(const std::map<TrialId, Trial>& trials, const SearchOptions& options) {
  constexpr double kNeverTooLongSeconds = 60;
  double confirm_s = 0, search_s = 0, training_s = INFINITY;
  for (const auto& [id, trial] : trials) {
    double& sum = trial.kind == TrialKind::kConfirm ? confirm_s : search_s;
    sum += trial.times.ended_s - trial.times.started_s;
    const auto step_ms = ValueAtBest(trial, options.metric, "latency");
    if (trial.kind == TrialKind::kSubmitted && step_ms && options.auto_method.run_steps)
      training_s = static_cast<double>(*options.auto_method.run_steps) * *step_ms / 1e3;
  }
  return confirm_s > std::min(std::max(search_s, kNeverTooLongSeconds), training_s);
}

Confirmation::Confirmation(std::vector<TrialId> arms, std::optional<TrialId> base, int64_t rounds,
                           int64_t looks, std::string metric)
    : base_(base), rounds_(rounds), looks_(looks), metric_(std::move(metric)) {
  for (const TrialId trial : arms)
    arms_.push_back({.trial = trial, .log_speeds = {}, .searched = {}, .left_out = {}});
}

std::optional<TrialId> Confirmation::Next() const {
  const int64_t round = NumRounds();
  const size_t left = Arms().size();
  if (left < std::clamp<size_t>(arms_.size(), 1, 2) || round >= rounds_ * looks_)
    return std::nullopt;
  const bool is_look = round > 0 && round % rounds_ == 0;
  if (is_look && HasDecided()) return std::nullopt;
  if (round >= rounds_ && !may_extend_) return std::nullopt;
  std::vector<TrialId> waiting;
  for (const Arm& arm : arms_) {
    if (arm.left_out.empty() && static_cast<int64_t>(arm.log_speeds.size()) == round)
      waiting.push_back(arm.trial);
  }
  return round % 2 == 0 ? waiting.front() : waiting.back();
}

bool Confirmation::GoesOn() const {
  const int64_t round = NumRounds();
  const auto has_ended = [round](const Arm& arm) {
    return !arm.left_out.empty() || static_cast<int64_t>(arm.log_speeds.size()) == round;
  };
  return round > 0 && round % rounds_ == 0 && std::ranges::all_of(arms_, has_ended) &&
         Next().has_value();
}

bool Confirmation::MayExtend() const {
  return looks_ > 1 && HasBase() && may_extend_ && Next().has_value();
}

bool Confirmation::HasBase() const {
  return base_ && Of(*base_).left_out.empty();
}

// REQUIRES: this is a look, and there are two arms.
bool Confirmation::HasDecided() const {
  if (!HasBase()) return true;
  const Factor factor = Compare(*BestOther(), *base_);
  if (!factor.has_interval()) return false;
  return (factor.low > 1 && !factor.is_vague()) || factor.high < kWorthMore;
}

void Confirmation::AddSearched(TrialId trial, const Trial& searched) {
  const std::optional<double> speed = SpeedOf(searched, metric_);
  if (speed) std::ranges::find(arms_, trial, &Arm::trial)->searched = std::log(*speed);
}

void Confirmation::Add(TrialId trial, const Trial& finished) {
  Arm& arm = *std::ranges::find(arms_, trial, &Arm::trial);
  const std::optional<double> speed = SpeedOf(finished, metric_);
  if (finished.state == TrialState::kSucceeded && speed) {
    arm.log_speeds.push_back(std::log(*speed));
    return;
  }
  const bool is_final =
      finished.state == TrialState::kInfeasible || ++arm.num_failed >= kMostFailures;
  if (is_final) arm.left_out = fmt::format("{}: {}", ToString(finished.state), finished.reason);
}

void Confirmation::LeaveOut(TrialId trial, const std::string& reason) {
  const auto arm = std::ranges::find(arms_, trial, &Arm::trial);
  if (arm != arms_.end()) arm->left_out = reason;
}

std::vector<TrialId> Confirmation::Arms() const {
  std::vector<TrialId> trials;
  for (const Arm& arm : arms_) {
    if (arm.left_out.empty()) trials.push_back(arm.trial);
  }
  return trials;
}

int64_t Confirmation::NumRounds() const {
  size_t rounds = static_cast<size_t>(rounds_ * looks_);
  for (const Arm& arm : arms_) {
    if (arm.left_out.empty()) rounds = std::min(rounds, arm.log_speeds.size());
  }
  return static_cast<int64_t>(rounds);
}

std::vector<std::pair<TrialId, std::string>> Confirmation::LeftOut() const {
  std::vector<std::pair<TrialId, std::string>> left_out;
  for (const Arm& arm : arms_) {
    if (!arm.left_out.empty()) left_out.emplace_back(arm.trial, arm.left_out);
  }
  return left_out;
}

std::optional<TrialId> Confirmation::BestOther() const {
  // A noisy arm may have a larger mean than one that is certainly faster.
  const auto rank = [this](TrialId arm) {
    return std::pair(HasBase() && Compare(arm, *base_).is_gain(), MeanSpeed(arm));
  };
  std::optional<TrialId> best;
  for (const TrialId arm : Arms()) {
    if (arm != base_ && (!best || rank(arm) > rank(*best))) best = arm;
  }
  return best;
}

double Confirmation::MeanSpeed(TrialId arm) const {
  return std::exp(LogSpeed(arm).mean);
}

Center Confirmation::LogSpeed(TrialId arm) const {
  return CenterOf(Complete(Of(arm)));
}

Factor Confirmation::Compare(TrialId arm, TrialId base) const {
  const double mean = CenterOf(Differences(Of(arm), Of(base), false)).mean;
  Factor factor{.value = std::exp(mean)};
  std::optional<double> half = HalfWidth(arm, base, false);
  if (!half) return factor;
  const std::vector<TrialId> arms = Arms();
  const auto is_searched = [this](TrialId id) { return Of(id).searched.has_value(); };
  if (NumRounds() < kManyRounds && std::ranges::all_of(arms, is_searched))
    half = std::max(half, HalfWidth(arm, base, true));
  factor.low = std::exp(mean - *half);
  factor.high = std::exp(mean + *half);
  return factor;
}

// Half the width of the interval of the factor's logarithm, nullopt if there are too few rounds for
// one; or the width that it would have if the rounds varied as they do together with what the
// search has measured.
std::optional<double> Confirmation::HalfWidth(TrialId arm, TrialId base, bool with_searched) const {
  const auto center_of = [&](TrialId one, TrialId other) {
    return CenterOf(Differences(Of(one), Of(other), with_searched));
  };
  const std::vector<TrialId> arms = Arms();
  const Center difference = center_of(arm, base);
  double variance = 0, pairs = 0;
  int64_t dof = difference.dof;
  for (size_t i = 0; i < arms.size(); ++i) {
    for (size_t j = 0; j < i; ++j, ++pairs) {
      const Center pair = center_of(arms[i], arms[j]);
      variance += pair.variance;
      dof = std::min(dof, pair.dof);
    }
  }
  const auto others = static_cast<int64_t>(arms.size()) - 1;
  dof *= others;
  if (dof < 1) return std::nullopt;
  const double probability = 1 - ErrorOfLook() / 2 / static_cast<double>(others);
  // Launches of one configuration may vary more than those of another.
  double error = std::sqrt(std::max(variance / pairs, difference.variance));
  const auto rounds = static_cast<double>(NumRounds());
  if (with_searched) error *= std::sqrt((rounds + 1) / rounds);  // The mean is that of the rounds.
  return StudentQuantile(probability, dof) * error;
}

// The part of kError that the present look has.
double Confirmation::ErrorOfLook() const {
  if (looks_ == 1) return kError;
  const bool is_first = NumRounds() <= rounds_;
  return kError / 2 / static_cast<double>(is_first ? 1 : looks_ - 1);
}

const Confirmation::Arm& Confirmation::Of(TrialId trial) const {
  const auto found = std::ranges::find(arms_, trial, &Arm::trial);
  DSAT_CHECK(found != arms_.end(), "trial {} is no arm", trial);
  return *found;
}

std::vector<double> Confirmation::Complete(const Arm& arm) const {
  return {arm.log_speeds.begin(), arm.log_speeds.begin() + NumRounds()};
}

std::vector<double> Confirmation::Differences(const Arm& arm, const Arm& base,
                                              bool with_searched) const {
  std::vector<double> differences = Complete(arm);
  for (size_t round = 0; round < differences.size(); ++round)
    differences[round] -= base.log_speeds[round];
  if (with_searched) differences.push_back(*arm.searched - *base.searched);
  return differences;
}

}  // namespace dsat
