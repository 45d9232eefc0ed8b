// Rounds in random order and what they say, on the logarithm of the speed.
#include "searcher/search/confirm.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"

namespace dsat {
namespace {

constexpr double kError = 0.05;
constexpr int64_t kMostFailures = 2;
// The rounds that launches of two kinds are given, which seldom agree by chance in so many.
constexpr int64_t kManyRounds = 6;
// A finalist that is slower than the best by less than this is as fast.
constexpr double kAsFast = 0.01;
// Knowledge of the noise from before the rounds does not count where these vary so many times as
// much, as a variance.
constexpr double kContradicts = 2.5;
// A pair that varies more than the others has a variance of its own, of which the others are as
// good as so many degrees of freedom.
constexpr int64_t kOwnDof = 2;
// A program that only computes has a power of 1, and one that others do not slow down one of 0.
constexpr double kPower = 0.5;
constexpr double kPowerSd = 0.5;

}  // namespace

double Posterior::Faster() const {
  if (scale <= 0) return mean > 0 ? 1 : mean < 0 ? 0 : 0.5;
  return StudentProbability(mean / scale, dof);
}

std::optional<double> SpeedOf(const Trial& trial, const std::string& metric) {
  if (SmallerIsBetter(metric)) {
    const std::optional<double> value = MetricValue(trial, metric);
    return value && *value > 0 ? std::optional(1 / *value) : std::nullopt;
  }
  const std::optional<double> throughput = ValueAtBest(trial, metric, "throughput");
  const std::optional<double> value = throughput ? throughput : MetricValue(trial, metric);
  return value && *value > 0 ? value : std::nullopt;
}

std::vector<int64_t> LooksUpTo(int64_t rounds) {
  std::vector<int64_t> looks;
  for (int64_t look = kFirstLook; look < rounds; look += std::max<int64_t>(1, look / 2))
    looks.push_back(look);
  looks.push_back(rounds);
  return looks;
}

std::optional<TrialId> Confirmation::Waiting() const {
  if (rounds_.empty()) return std::nullopt;
  const Round& round = rounds_.back();
  for (const TrialId trial : round.order) {
    if (IsLeft(trial) && !round.launches.contains(trial)) return trial;
  }
  return std::nullopt;
}

// The round after those that are there. REQUIRES: these are complete.
Confirmation::Round Confirmation::Upcoming() const {
  Round round;
  round.order = Arms();
  const auto number = std::ssize(rounds_);
  const std::optional<TrialId> best = BestOther();
  if (number >= plan_.looks.front() && HasBase() && best) round.order = {*plan_.base, *best};
  Rng rng(static_cast<uint64_t>(plan_.seed), static_cast<uint64_t>(number), "round");
  for (size_t i = round.order.size(); i > 1; --i)
    std::swap(round.order[i - 1], round.order[rng.Below(i)]);
  return round;
}

std::optional<TrialId> Confirmation::Next() const {
  if (Arms().size() < std::clamp<size_t>(arms_.size(), 1, 2)) return std::nullopt;
  if (const std::optional<TrialId> waiting = Waiting()) return waiting;
  if (NumRounds() >= plan_.looks.back() || (IsLook() && HasDecided())) return std::nullopt;
  return Upcoming().order.front();
}

bool Confirmation::MayEndWithNext() const {
  const bool is_open = Waiting().has_value();
  return std::ranges::find(plan_.looks, std::ssize(rounds_) + (is_open ? 0 : 1)) !=
             plan_.looks.end() &&
         Next() == BestOther();
}

bool Confirmation::IsLook() const {
  return IsBetweenRounds() && std::ranges::find(plan_.looks, NumRounds()) != plan_.looks.end();
}

bool Confirmation::IsBetweenRounds() const {
  return !Waiting();
}

int64_t Confirmation::NextLook() const {
  const auto next = std::ranges::upper_bound(plan_.looks, NumRounds());
  return next == plan_.looks.end() ? plan_.looks.back() : *next;
}

void Confirmation::Extend(std::vector<int64_t> looks) {
  plan_.looks = std::move(looks);
  plan_.round_cost = 0;
}

// REQUIRES: this is a look, and there are two arms.
bool Confirmation::HasDecided() const {
  const std::optional<TrialId> best = BestOther();
  if (!HasBase() || !best) return true;
  if (HasTwoKinds() && NumRounds() < kManyRounds) return false;
  const Factor factor = Compare(*best, *plan_.base);
  if (factor.has_interval() && (factor.low > 1 || factor.high < 1)) return true;
  const Posterior belief = *Believe(*best, *plan_.base);
  const double regret = belief.Utility() > 0 ? Posterior::kCaution * belief.Loss() : belief.Gain();
  return regret <= plan_.round_cost * static_cast<double>(NextLook() - NumRounds());
}

void Confirmation::AddSearched(const Trial& searched) {
  const auto speed = SpeedOf(searched, plan_.metric);
  if (speed) searched_ = {std::log(*speed), LogLeft(searched)};
}

void Confirmation::Add(TrialId trial, const Trial& finished, bool forgives) {
  Arm& arm = arms_.at(trial);
  if (IsBetweenRounds()) rounds_.push_back(Upcoming());
  const std::optional<double> speed = SpeedOf(finished, plan_.metric);
  if (finished.state == TrialState::kSucceeded && speed) {
    rounds_.back().launches[trial] = {std::log(*speed), LogLeft(finished)};
    LearnPower();
  } else if (finished.state != TrialState::kStopped) {
    ++arm.num_failed;
    const bool is_final = finished.state == TrialState::kInfeasible && !forgives;
    if (is_final || arm.num_failed >= kMostFailures)
      arm.left_out = fmt::format("{}: {}", ToString(finished.state), finished.reason);
  }
  two_kinds_ = two_kinds_ || (IsLook() && IsFarFromSearched());
}

void Confirmation::LeaveOut(TrialId trial, const std::string& reason) {
  if (arms_.contains(trial)) arms_.at(trial).left_out = reason;
}

std::vector<TrialId> Confirmation::Arms() const {
  std::vector<TrialId> left;
  std::ranges::copy_if(plan_.arms, std::back_inserter(left),
                       [this](TrialId trial) { return IsLeft(trial); });
  return left;
}

int64_t Confirmation::NumRounds() const {
  return std::ssize(rounds_) - (Waiting() ? 1 : 0);
}

std::vector<std::pair<TrialId, std::string>> Confirmation::LeftOut() const {
  std::vector<std::pair<TrialId, std::string>> left_out;
  for (const TrialId trial : plan_.arms) {
    if (!IsLeft(trial)) left_out.emplace_back(trial, arms_.at(trial).left_out);
  }
  return left_out;
}

// By how much more is believed of a finalist than the rounds alone show, beside the others.
double Confirmation::BelievedShift(TrialId trial) const {
  double shift = 0, count = 0;
  for (const TrialId arm : Arms()) {
    if (arm == plan_.base) continue;
    if (!arms_.at(arm).belief || LogSpeeds(arm).empty()) return 0;
    const double own = std::log(*arms_.at(arm).belief) - CenterOf(LogSpeeds(arm)).mean;
    shift += own;
    ++count;
  }
  return std::log(*arms_.at(trial).belief) - CenterOf(LogSpeeds(trial)).mean - shift / count;
}

std::optional<TrialId> Confirmation::BestOther() const {
  std::vector<TrialId> others;
  for (const TrialId arm : Arms()) {
    const bool is_measured =
        HasBase() ? Believe(arm, *plan_.base).has_value() : !LogSpeeds(arm).empty();
    if (arm != plan_.base && is_measured) others.push_back(arm);
  }
  if (others.empty()) return std::nullopt;
  std::map<TrialId, double> means, utilities;
  for (const TrialId arm : others) {
    Posterior belief =
        HasBase() ? *Believe(arm, *plan_.base) : Posterior{.mean = CenterOf(LogSpeeds(arm)).mean};
    belief.mean += BelievedShift(arm);
    means[arm] = belief.mean;
    utilities[arm] = HasBase() ? belief.Utility() : belief.mean;
  }
  const TrialId best =
      *std::ranges::max_element(others, {}, [&](TrialId a) { return utilities[a]; });
  return *std::ranges::find_if(others, [&](TrialId arm) {
    const bool may_win = arm == best || !HasBase() || utilities[arm] > 0;
    return may_win && means[arm] >= means[best] - kAsFast;
  });
}

bool Confirmation::IsFarFromSearched() const {
  constexpr double kMostDeviations = 3;
  constexpr double kDrift = 0.02;  // The machine may have changed since the search.
  const std::optional<TrialId> best = BestOther();
  if (!searched_ || !HasBase() || !best) return false;
  const std::vector<double> speeds = LogSpeeds(*plan_.base);
  const double error =
      std::sqrt(kDrift * kDrift + VarianceOf(*best, *plan_.base).of_launch *
                                      (1 + 1 / static_cast<double>(speeds.size())));
  return std::abs(AtMeanLoad(*searched_) - CenterOf(speeds).mean) > kMostDeviations * error;
}

// The mean of each; zeros of none.
Confirmation::Launch Confirmation::MeanOf(const std::vector<Launch>& launches) {
  Launch mean;
  const double share = 1 / static_cast<double>(launches.size());
  for (const Launch& one : launches)
    mean = {mean.log_speed + share * one.log_speed, mean.log_left + share * one.log_left};
  return mean;
}

std::vector<Confirmation::Launch> Confirmation::LaunchesOf(TrialId arm) const {
  std::vector<Launch> launches;
  for (const Round& round : rounds_) {
    const auto found = round.launches.find(arm);
    if (found != round.launches.end()) launches.push_back(found->second);
  }
  return launches;
}

// The contrasts as they would be without a difference of the load.
std::vector<double> Confirmation::AtEqualLoad(const std::vector<Launch>& contrasts) const {
  std::vector<double> speeds;
  for (const Launch& one : contrasts)
    speeds.push_back(one.log_speed - power_.mean * one.log_left);
  return speeds;
}

std::vector<double> Confirmation::LogSpeeds(TrialId arm) const {
  std::vector<double> speeds;
  for (const Launch& launch : LaunchesOf(arm))
    speeds.push_back(AtMeanLoad(launch));
  return speeds;
}

double Confirmation::MeanSpeed(TrialId arm) const {
  return std::exp(LogSpeed(arm).mean);
}

Center Confirmation::LogSpeed(TrialId arm) const {
  Center center = CenterOf(LogSpeeds(arm));
  const TrialId other = HasBase() && arm != plan_.base ? *plan_.base : BestOther().value_or(arm);
  if (other == arm) return center;
  // Drift that both arms have in common is in the error of a speed, too.
  const Variance known = VarianceOf(arm, other);
  const auto count = static_cast<double>(center.dof + 1);
  const double own =
      (kOwnDof * known.of_launch + center.variance * count * static_cast<double>(center.dof)) /
      static_cast<double>(kOwnDof + center.dof);
  const double left = MeanOf(LaunchesOf(arm)).log_left - power_.mean_left;
  center.variance = std::max(known.of_launch, own) / count + left * left * power_.variance;
  center.dof = known.dof;
  return center;
}

// The contrasts of Helmert, of each arm with the mean of those before it: a list for each arm but
// the first, with an entry for each round that has it and all those before it. In each round they
// are independent and have the variance of a launch; that of the first two arms is their
// difference, as a variance.
std::vector<std::vector<Confirmation::Launch>> Confirmation::Contrasts(
    const std::vector<TrialId>& order) const {
  std::vector<std::vector<Launch>> contrasts(order.empty() ? 0 : order.size() - 1);
  for (const Round& round : rounds_) {
    Launch sum;
    for (size_t i = 0; i < order.size() && round.launches.contains(order[i]); ++i) {
      const Launch& launch = round.launches.at(order[i]);
      const auto count = static_cast<double>(i);
      const double scale = std::sqrt(count / (count + 1));
      if (i > 0)
        contrasts[i - 1].push_back({(launch.log_speed - sum.log_speed / count) * scale,
                                    (launch.log_left - sum.log_left / count) * scale});
      sum = {sum.log_speed + launch.log_speed, sum.log_left + launch.log_left};
    }
  }
  return contrasts;
}

// By Bayesian regression of the contrasts, whose means are those of the configurations.
void Confirmation::LearnPower() {
  double sxx = 0, sxy = 0;
  for (const std::vector<Launch>& contrasts : Contrasts(Arms())) {
    const Launch mean = MeanOf(contrasts);
    for (const Launch& one : contrasts) {
      sxx += (one.log_left - mean.log_left) * (one.log_left - mean.log_left);
      sxy += (one.log_left - mean.log_left) * (one.log_speed - mean.log_speed);
    }
  }
  std::vector<Launch> all;
  for (const TrialId arm : plan_.arms)
    std::ranges::copy(LaunchesOf(arm), std::back_inserter(all));
  power_.mean_left = MeanOf(all).log_left;
  // The variance depends on the power; two steps are close to what they converge to.
  double of_launch = plan_.noise.sd * plan_.noise.sd;
  for (int step = 0; step < 2 && of_launch > 0; ++step) {
    const double weight = of_launch / (kPowerSd * kPowerSd);  // The prior's.
    power_.mean = (weight * kPower + sxy) / (weight + sxx);
    power_.variance = of_launch / (weight + sxx);
    power_.squares = weight * std::pow(power_.mean - kPower, 2);
    const std::optional<TrialId> best = BestOther();
    if (best) of_launch = VarianceOf(*best, plan_.base.value_or(*best)).of_launch;
  }
}

// The variance of a launch, by all contrasts, or by those of the pair where these vary more.
Confirmation::Variance Confirmation::VarianceOf(TrialId arm, TrialId base) const {
  std::vector<TrialId> order = {base};
  if (arm != base) order.push_back(arm);
  for (const TrialId other : Arms()) {
    if (other != arm && other != base) order.push_back(other);
  }
  double squares = power_.squares, own_squares = 0;
  int64_t dof = 0, own_dof = 0;
  const std::vector<std::vector<Launch>> all = Contrasts(order);
  for (const std::vector<Launch>& contrasts : all) {
    if (contrasts.empty()) continue;
    const Center center = CenterOf(AtEqualLoad(contrasts));
    const double sum = center.variance * static_cast<double>(center.dof * (center.dof + 1));
    if (&contrasts == &all.front()) std::tie(own_squares, own_dof) = std::pair(sum, center.dof);
    squares += sum;
    dof += center.dof;
  }
  LaunchNoise known = plan_.noise;
  const auto count = static_cast<double>(dof);
  const bool contradicts = squares > kContradicts * known.sd * known.sd * count;
  // Without two degrees of freedom there is no expectation.
  if (dof > 0 && (known.is_guess || contradicts))
    known.dof = std::max<int64_t>(0, LaunchNoise::kGuessDof - dof);
  const auto prior = static_cast<double>(known.dof);
  Variance variance{(prior * known.sd * known.sd + squares) / (prior + count), known.dof + dof};
  const double own =
      (kOwnDof * variance.of_launch + own_squares) / static_cast<double>(kOwnDof + own_dof);
  variance.of_launch = std::max(variance.of_launch, own);
  return variance;
}

std::map<int64_t, double> Confirmation::LogFactors(TrialId arm, TrialId base) const {
  std::map<int64_t, double> factors;
  int64_t number = 0;
  for (const Round& round : rounds_) {
    ++number;
    const auto is = round.launches.find(arm), was = round.launches.find(base);
    if (is != round.launches.end() && was != round.launches.end())
      factors[number] = AtMeanLoad(is->second) - AtMeanLoad(was->second);
  }
  return factors;
}

std::optional<Posterior> Confirmation::Believe(TrialId arm, TrialId base) const {
  const std::vector<Launch> pair = Contrasts({base, arm})[0];
  if (pair.empty()) return std::nullopt;
  const double left = MeanOf(pair).log_left;
  const Variance variance = VarianceOf(arm, base);
  const double square = variance.of_launch / std::ssize(pair) + left * left * power_.variance;
  return Posterior{.mean = std::sqrt(2) * CenterOf(AtEqualLoad(pair)).mean,
                   .scale = std::sqrt(2 * square),
                   .dof = variance.dof};
}

Factor Confirmation::Compare(TrialId arm, TrialId base) const {
  const std::optional<Posterior> belief = Believe(arm, base);
  DSAT_CHECK(belief, "trials {} and {} have no round in common", arm, base);
  Factor factor{.value = std::exp(belief->mean),
                .faster = belief->Faster(),
                .rounds = std::ssize(LogFactors(arm, base))};
  if (factor.rounds < 2) return factor;
  const auto others = static_cast<double>(std::max<size_t>(plan_.arms.size(), 2) - 1);
  const double error = kError / static_cast<double>(plan_.looks.size()) / others;
  const double half = StudentQuantile(1 - error / 2, belief->dof) * belief->scale;
  factor.low = std::exp(belief->mean - half);
  factor.high = std::exp(belief->mean + half);
  return factor;
}

}  // namespace dsat
