// Which configuration auto measures next, and when it stops.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

#include "base/rng.h"
#include "methods/auto.h"
#include "methods/auto_normal.h"
#include "proto/measuring.h"

namespace dsat {
namespace {

// A pick is near the best within this share of a step.
constexpr double kNear = 0.01;
// An expected gain below this share of a step ends the search.
constexpr double kLeastGain = 3e-5;
// How much longer than its search a training is assumed to take, if nothing is known of it.
constexpr double kTrainingPerSearch = 600;
// Before so many launches have succeeded, the model may be sure of what is wrong.
constexpr int64_t kLeastLaunches = 8;
// Out of memory is as bad as losing this share of a step.
constexpr double kMisfitLoss = 0.01;
// And so much worse for each trial that runs.
constexpr double kMayWait = 0.25;
constexpr double kPossible = 0.01;
constexpr int64_t kMostLaunchesOfOne = 16;
// Points that the posterior is sampled at, and how often.
constexpr size_t kSampledPoints = 160;
// Configurations whose difference has a smaller standard deviation are equally fast.
constexpr double kEqual = 0.003;
constexpr int kSamples = 256;
// The draws for a stated probability have this part of the model's standard deviations, with which
// it is about right on simulated machines.
constexpr double kErrors = 0.75;

// The switches and other knobs of a combination as one number.
uint64_t GroupOf(const AutoKnobs& knobs) {
  uint64_t group =
      (knobs.overlap ? 1 : 0) + (knobs.reduce_scatter ? 2 : 0) + (knobs.contiguous ? 4 : 0);
  for (const int other : knobs.others)
    group = group * 31 + static_cast<uint64_t>(other + 1);
  return group;
}

// The expected gain of measuring a point that is better than the pick by `difference`, for each
// launch. Where launches vary, one of them rarely changes the pick but several do, so that as many
// are assumed as gain the most on average (Frazier and Powell 2010, "Paradoxes in Learning and the
// Marginal Value of Information").
double GainPerLaunch(double difference, double variance, double covariance, double noise) {
  double gain = 0;
  for (int launches = 1; launches <= kMostLaunchesOfOne; launches *= 2) {
    const double learned = std::abs(variance - covariance) / std::sqrt(variance + noise / launches);
    gain = std::max(gain, ExpectedGain(difference, learned) / launches);
  }
  return gain;
}

}  // namespace

// The candidates that a decision looks at: for each stage, size and setting of the switches those
// that the time model likes best; the best over all; and the neighbors of the best measurements.
std::vector<AutoCandidate> AutoMethod::Screen() const {
  struct Scored {
    double log;
    AutoCandidate candidate;
    bool operator<(const Scored& other) const { return log < other.log; }
  };
  constexpr size_t kPerGroup = 2, kOverall = 300, kMost = 2500;
  std::vector<Scored> kept, all;
  for (uint32_t place = 0; place < space_.num_places(); ++place) {
    const auto num_sizes = static_cast<uint32_t>(space_.sizes(place).size());
    const auto num_knobs = static_cast<uint32_t>(space_.knobs(place).size());
    std::vector<uint64_t> groups;
    for (const AutoKnobs& knobs : space_.knobs(place))
      groups.push_back(GroupOf(knobs));
    for (uint32_t size = 0; size < num_sizes; ++size) {
      std::map<uint64_t, std::vector<Scored>> best;
      for (uint32_t knobs = 0; knobs < num_knobs; ++knobs) {
        const AutoCandidate candidate{place, knobs, size};
        const AutoConfig config = space_.ConfigOf(candidate);
        if (ProbabilityFits(config) < kPossible) continue;
        const Scored scored{regression_.LogOf(PointOf(config)), candidate};
        all.push_back(scored);
        std::vector<Scored>& group = best[groups[knobs]];
        group.push_back(scored);
        std::push_heap(group.begin(), group.end());
        if (group.size() <= kPerGroup) continue;
        std::pop_heap(group.begin(), group.end());
        group.pop_back();
      }
      for (const auto& [key, group] : best)
        kept.insert(kept.end(), group.begin(), group.end());
    }
  }
  const auto overall = std::min(all.size(), kOverall);
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(overall), all.end());
  std::sort(kept.begin(), kept.end());
  kept.resize(std::min(kept.size(), kMost));
  kept.insert(kept.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(overall));
  std::set<AutoCandidate> chosen;
  for (const Scored& scored : kept)
    chosen.insert(scored.candidate);
  if (chosen.empty() && !space_.space().exact && successes_ == 0) return LeastNeeds();
  return {chosen.begin(), chosen.end()};
}

// Formulas may be wrong: where nothing is predicted to fit, what needs the least is tried.
std::vector<AutoCandidate> AutoMethod::LeastNeeds() const {
  std::vector<AutoCandidate> least;
  for (uint32_t place = 0; place < space_.num_places(); ++place) {
    if (space_.sizes(place).empty() || space_.knobs(place).empty()) continue;
    AutoCandidate best{place, 0, 0};
    for (uint32_t knobs = 1; knobs < space_.knobs(place).size(); ++knobs) {
      const AutoCandidate candidate{place, knobs, 0};
      if (memory_.Share(space_.ConfigOf(candidate)) < memory_.Share(space_.ConfigOf(best)))
        best = candidate;
    }
    least.push_back(best);
  }
  return least;
}

AutoMethod::Outlook AutoMethod::LookAround() const {
  Outlook outlook;
  std::vector<AutoPoint> points;
  std::set<AutoCandidate> listed;
  const auto add = [&](const AutoPoint& point, const std::optional<AutoCandidate>& candidate) {
    if (candidate && !listed.insert(*candidate).second) return;
    points.push_back(point);
    outlook.candidates.push_back(candidate);
    outlook.fits.push_back(ProbabilityFits(point.config));
  };
  for (const Measured& m : measured_)
    add(m.point, m.candidate);
  outlook.num_measured = points.size();
  for (size_t i = 0; i < outlook.num_measured; ++i)
    outlook.fits[i] = measured_[i].HasDroppedOut() ? 0 : 1;
  const std::vector<AutoPoint> pending = Pending();
  for (const AutoPoint& point : pending)
    add(point, space_.Find(point.config));
  for (const Asked& asked : asked_) {
    for (const AutoObservation& o : asked.points)
      add(PointOf(o.point.config), space_.Find(o.point.config));
  }
  outlook.num_known = points.size();
  for (const AutoCandidate& candidate : screened_) {
    const AutoPoint point = PointOf(space_.ConfigOf(candidate));
    if (!memory_.IsRuledOut(point.config)) add(point, candidate);
  }
  outlook.view = regression_.Look(std::move(points), pending);
  for (size_t i = 0; i < outlook.num_known; ++i) {
    const auto index = static_cast<Eigen::Index>(i);
    if (outlook.fits[i] == 0) continue;
    if (!outlook.incumbent || outlook.view.mean[index] < outlook.view.mean[*outlook.incumbent])
      outlook.incumbent = index;
  }
  return outlook;
}

double AutoMethod::StepSeconds(double log_value, const AutoConfig& config) const {
  if (!log_step_s_) return 1;
  const double samples = SmallerIsBetter(options_.metric) ? 0 : std::log(config.samples());
  return std::exp(std::min(log_value + samples + *log_step_s_, 20.0));
}

double AutoMethod::TrainingSeconds(const Outlook& outlook) const {
  if (!options_.auto_method.run_steps || !log_step_s_) return kTrainingPerSearch * spent_s_;
  const AutoConfig& best = outlook.view.points[static_cast<size_t>(*outlook.incumbent)].config;
  double steps = static_cast<double>(*options_.auto_method.run_steps);
  if (submitted_samples_ && !SmallerIsBetter(options_.metric))
    steps *= *submitted_samples_ / best.samples();
  return steps * StepSeconds(outlook.view.mean[*outlook.incumbent], best);
}

double AutoMethod::CostOf(double log_value, const AutoConfig& config, double fits,
                          bool new_launch) const {
  const double launch_s = new_launch ? launch_s_ : 0;
  const double run_s = launch_s + MeasuringSeconds(options_, StepSeconds(log_value, config));
  // What an exact prediction refuses costs nothing.
  const double launched =
      space_.space().exact ? std::max(memory_.ProbabilityFits(config), fits) : 1;
  return fits * run_s + (launched - fits) * launch_s + 1e-3;
}

// How much faster the best pick is expected to be once point i was measured.
double AutoMethod::GainOf(const Outlook& outlook, Eigen::Index i) const {
  const Eigen::Index best = *outlook.incumbent;
  if (i == best) return GainOfIncumbent(outlook);
  const double variance = outlook.view.variance[i];
  const double covariance = regression_.Covariance(outlook.view, i, best);
  const double difference = outlook.view.mean[best] - outlook.view.mean[i];
  return outlook.fits[static_cast<size_t>(i)] *
         GainPerLaunch(difference, variance, covariance, regression_.NoiseVariance());
}

// The same for the incumbent: it may turn out to be slower than the next best measured point.
double AutoMethod::GainOfIncumbent(const Outlook& outlook) const {
  const Eigen::Index best = *outlook.incumbent;
  const double variance = outlook.view.variance[best];
  double gain = 0;
  for (size_t j = 0; j < outlook.num_measured; ++j) {
    const auto other = static_cast<Eigen::Index>(j);
    if (other == best || outlook.fits[j] == 0) continue;
    gain = std::max(gain, GainPerLaunch(outlook.view.mean[best] - outlook.view.mean[other],
                                        variance, regression_.Covariance(outlook.view, best, other),
                                        regression_.NoiseVariance()));
  }
  return gain;
}

// A point may be proposed if it was not yet and its gain is worth the risk that it does not fit, or
// to be measured again.
bool AutoMethod::MayAsk(const Outlook& outlook, Eigen::Index i) const {
  const auto index = static_cast<size_t>(i);
  const std::optional<AutoCandidate>& candidate = outlook.candidates[index];
  if (!candidate) return false;
  if (index < outlook.num_measured) {
    const auto is_running = [&](const Asked& asked) {
      return asked.running && asked.candidate == *candidate;
    };
    const Measured& measured = measured_[index];
    return measured.launches < kMostLaunchesOfOne && !measured.HasDroppedOut() &&
           successes_ >= kLeastLaunches && std::none_of(asked_.begin(), asked_.end(), is_running);
  }
  if (index < outlook.num_known || times_asked_.contains(*candidate)) return false;
  if (outlook.fits[index] < kPossible) return false;
  if (space_.space().exact || !outlook.incumbent) return true;
  // What runs may soon tell whether it fits, without another launch.
  const auto num_running = std::ranges::count_if(asked_, &Asked::running);
  const double risk = kMisfitLoss * (1 + kMayWait * static_cast<double>(num_running));
  return GainOf(outlook, i) >= risk * (1 - outlook.fits[index]);
}

// Before anything was measured: the best prediction that most probably fits, or what fits most
// probably; of those that are predicted to be about as fast, the one with the shortest step.
std::optional<AutoMethod::Choice> AutoMethod::First(const Outlook& outlook) const {
  std::optional<size_t> best;
  const auto rank = [&](size_t i) {
    return std::pair(std::min(outlook.fits[i], 0.9),
                     -outlook.view.mean[static_cast<Eigen::Index>(i)]);
  };
  const auto may_ask = [&](size_t i) {
    return outlook.candidates[i] && !times_asked_.contains(*outlook.candidates[i]);
  };
  for (size_t i = 0; i < outlook.candidates.size(); ++i) {
    if (may_ask(i) && (!best || rank(i) > rank(*best))) best = i;
  }
  if (!best) return std::nullopt;
  const auto [fits, log_speed] = rank(*best);
  const auto samples = [&](size_t i) { return outlook.view.points[i].config.samples(); };
  for (size_t i = 0; i < outlook.candidates.size(); ++i) {
    const auto [i_fits, i_log_speed] = rank(i);
    const bool is_near = i_fits >= fits && i_log_speed > log_speed - kNear;
    if (may_ask(i) && is_near && samples(i) < samples(*best)) best = i;
  }
  return Choice{.candidate = *outlook.candidates[*best], .gain = 1, .cost_s = 1};
}

std::optional<AutoMethod::Choice> AutoMethod::Best(const Outlook& outlook) const {
  std::optional<Choice> best;
  for (size_t i = 0; i < outlook.candidates.size(); ++i) {
    const auto index = static_cast<Eigen::Index>(i);
    if (!MayAsk(outlook, index)) continue;
    const Choice choice{.candidate = *outlook.candidates[i],
                        .repeat = i < outlook.num_measured,
                        .gain = GainOf(outlook, index),
                        .cost_s = CostOf(outlook.view.mean[index], outlook.view.points[i].config,
                                         outlook.fits[i], true)};
    // However cheap it is; but few launches do not show what others would gain.
    if (choice.gain < kLeastGain && successes_ >= kLeastLaunches) continue;
    if (!best || choice.gain / choice.cost_s > best->gain / best->cost_s) best = choice;
  }
  return best;
}

double AutoMethod::DifferenceVariance(const Outlook& outlook, Eigen::Index i,
                                      Eigen::Index j) const {
  return outlook.view.variance[i] + outlook.view.variance[j] -
         2 * regression_.Covariance(outlook.view, i, j);
}

// The pick and the first of these points, one of those that are alike and equally fast.
std::vector<Eigen::Index> AutoMethod::Distinct(const Outlook& outlook, Eigen::Index pick,
                                               const std::vector<Eigen::Index>& points) const {
  const auto config = [&](Eigen::Index i) -> const AutoConfig& {
    return outlook.view.points[static_cast<size_t>(i)].config;
  };
  std::vector<Eigen::Index> chosen = {pick};
  for (const Eigen::Index i : points) {
    if (chosen.size() == kSampledPoints) break;
    const bool is_known = std::ranges::any_of(chosen, [&](Eigen::Index other) {
      if (!config(i).IsLike(config(other))) return false;
      return DifferenceVariance(outlook, i, other) < kEqual * kEqual;
    });
    if (!is_known) chosen.push_back(i);
  }
  return chosen;
}

double AutoMethod::ProbabilityNearBest(const Outlook& outlook, Eigen::Index pick) const {
  // The pick and those that are most likely to beat it.
  std::vector<Eigen::Index> points;
  for (size_t i = 0; i < outlook.candidates.size(); ++i) {
    const auto index = static_cast<Eigen::Index>(i);
    if (index != pick && outlook.fits[i] >= kPossible) points.push_back(index);
  }
  std::vector<double> threat(outlook.candidates.size());
  for (const Eigen::Index i : points) {
    const double at_best = outlook.view.mean[i] - 1.5 * std::sqrt(outlook.view.variance[i]);
    threat[static_cast<size_t>(i)] =
        outlook.fits[static_cast<size_t>(i)] * std::max(outlook.view.mean[pick] - at_best, 0.0);
  }
  std::ranges::stable_sort(points, std::greater(),
                           [&](Eigen::Index i) { return threat[static_cast<size_t>(i)]; });
  points = Distinct(outlook, pick, points);
  const auto n = static_cast<Eigen::Index>(points.size());
  Eigen::MatrixXd covariance(n, n);
  for (Eigen::Index i = 0; i < n; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) {
      covariance(i, j) = covariance(j, i) = regression_.Covariance(
          outlook.view, points[static_cast<size_t>(i)], points[static_cast<size_t>(j)]);
    }
    covariance(i, i) += 1e-8;
  }
  const Eigen::LLT<Eigen::MatrixXd> factor(covariance);
  const Eigen::MatrixXd lower = factor.matrixL();
  Rng rng(static_cast<uint64_t>(options_.random_seed), observations_.size(), "near_best");
  int near = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    Eigen::VectorXd normal(n);
    for (Eigen::Index i = 0; i < n; ++i)
      normal[i] = rng.Normal();
    const Eigen::VectorXd drawn = lower.triangularView<Eigen::Lower>() * normal;
    // One draw decides for all points how much memory is left.
    const double memory = rng.Uniform();
    double best = INFINITY, picked = 0;
    for (Eigen::Index i = 0; i < n; ++i) {
      const auto index = static_cast<size_t>(points[static_cast<size_t>(i)]);
      const double value = outlook.view.mean[points[static_cast<size_t>(i)]] + kErrors * drawn[i];
      if (i == 0) picked = value;
      if (i == 0 || outlook.fits[index] > memory) best = std::min(best, value);
    }
    near += picked <= best + kNear ? 1 : 0;
  }
  return static_cast<double>(near) / kSamples;
}

bool AutoMethod::IsEnough(const Outlook& outlook, const Choice& choice) const {
  if (!outlook.incumbent || successes_ < kLeastLaunches) return false;
  if (choice.gain < kLeastGain || choice.gain * TrainingSeconds(outlook) < choice.cost_s)
    return true;
  return ProbabilityNearBest(outlook, *outlook.incumbent) >= kSure;
}

// The best of the measured configurations `ranked`, and those that gain the most by being confirmed
// beside it: one in any case, so that there is another answer if the best one drops out, and a
// further one if the training to come gains what its launches cost.
std::vector<size_t> AutoMethod::Finalists(const Outlook& outlook,
                                          const std::vector<size_t>& ranked) const {
  const auto pick = static_cast<Eigen::Index>(ranked[0]);
  const auto rounds = static_cast<double>(std::max<int64_t>(options_.confirm_rounds, 1));
  const double noise = 2 * regression_.NoiseVariance() / rounds;
  std::vector<std::pair<double, size_t>> others;
  for (const size_t i : std::span(ranked).subspan(1)) {
    const auto index = static_cast<Eigen::Index>(i);
    const double variance = std::max(DifferenceVariance(outlook, index, pick), 0.0);
    const double gain = ExpectedGain(outlook.view.mean[pick] - outlook.view.mean[index],
                                     variance / std::sqrt(variance + noise));
    others.emplace_back(gain, i);
  }
  // Equal gains keep the order of the ranking.
  std::ranges::stable_sort(others, std::greater(), &std::pair<double, size_t>::first);
  std::vector<size_t> finalists = {ranked[0]};
  for (const auto& [gain, i] : others) {
    const double mean = outlook.view.mean[static_cast<Eigen::Index>(i)];
    const double cost_s = rounds * CostOf(mean, outlook.view.points[i].config, 1, true);
    const bool pays = gain * TrainingSeconds(outlook) > cost_s;
    if (finalists.size() == 3 || (finalists.size() == 2 && !pays)) break;
    finalists.push_back(i);
  }
  return finalists;
}

// A measurement clearly below the best one's throughput cannot win.
double AutoMethod::GiveUpBelow(const Outlook& outlook) const {
  const bool follows = !SmallerIsBetter(options_.metric) ||
                       (options_.metric == "latency" && space_.space().samples_per_step > 0);
  if (!follows || outlook.num_measured == 0) return 0;
  const double best = *std::max_element(throughputs_.begin(), throughputs_.end());
  return best * std::exp(-4 * std::sqrt(2 * regression_.NoiseVariance()) - 0.02);
}

}  // namespace dsat
