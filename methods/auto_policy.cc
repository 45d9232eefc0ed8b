// The gains and costs of launches, and the choice between them.
#include "methods/auto_policy.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <ranges>
#include <span>
#include <tuple>

#include "base/rng.h"
#include "methods/auto_normal.h"

namespace dsat {
namespace {

// The switches and other knobs of a combination as one number.
uint64_t GroupOf(const AutoKnobs& knobs) {
  uint64_t group =
      (knobs.overlap ? 1 : 0) + (knobs.reduce_scatter ? 2 : 0) + (knobs.contiguous ? 4 : 0);
  for (const int other : knobs.others)
    group = group * 31 + other + 1;
  return group;
}

// The expected gain of measuring a point that is better than the pick by `difference`, for each
// launch. Where launches vary, one of them rarely changes the pick but several do, so that as many
// are assumed as gain the most on average (Frazier and Powell 2010, "Paradoxes in Learning and the
// Marginal Value of Information").
double GainPerLaunch(double difference, double variance, double covariance, double noise) {
  double gain = 0;
  for (int launches = 1; launches <= kAutoDecisions.most_launches_of_one; launches *= 2) {
    const double learned = std::abs(variance - covariance) / std::sqrt(variance + noise / launches);
    gain = std::max(gain, ExpectedGain(difference, learned) / launches);
  }
  return gain;
}

// Formulas may be wrong: where nothing is predicted to fit, what needs the least is tried.
std::vector<AutoCandidate> LeastNeeds(const AutoBelief& belief) {
  const AutoSpace& space = belief.space();
  std::vector<AutoCandidate> least;
  for (int64_t place = 0; place < space.num_places(); ++place) {
    if (space.sizes(place).empty() || space.knobs(place).empty()) continue;
    const auto share = [&](const AutoCandidate& candidate) {
      return belief.memory().Share(space.ConfigOf(candidate));
    };
    AutoCandidate best{place, 0, 0};
    for (int64_t knobs = 1; knobs < std::ssize(space.knobs(place)); ++knobs) {
      const AutoCandidate candidate{place, knobs, 0};
      if (share(candidate) < share(best)) best = candidate;
    }
    least.push_back(best);
  }
  return least;
}

// The measured configurations of the space, the best first by the belief.
std::multimap<double, AutoCandidate> RankMeasured(const AutoBelief& belief,
                                                  const AutoRecord& record) {
  std::vector<AutoConfig> configs;
  std::vector<AutoCandidate> candidates;
  for (const AutoRecord::Measured& m : record.measured) {
    if (!m.candidate || m.HasDroppedOut()) continue;
    configs.push_back(m.config);
    candidates.push_back(*m.candidate);
  }
  const AutoRegression::View view = belief.Look(configs, {});
  std::multimap<double, AutoCandidate> ranked;  // Equal ones stay in their order.
  for (size_t i = 0; i < candidates.size(); ++i)
    ranked.emplace(view.mean[i], candidates[i]);
  return ranked;
}

// Adds what differs in one knob, or is among the next sizes.
void AddNeighbors(const AutoSpace& space, const AutoCandidate& of,
                  std::set<AutoCandidate>& chosen) {
  constexpr int64_t kSizes = 2;
  const std::vector<AutoKnobs>& knobs = space.knobs(of.place);
  for (int64_t i = 0; i < std::ssize(knobs); ++i) {
    if (knobs[i].NumDifferences(knobs[of.knobs]) == 1) chosen.insert({of.place, i, of.size});
  }
  for (int64_t size = std::max<int64_t>(of.size - kSizes, 0);
       size <= std::min(of.size + kSizes, std::ssize(space.sizes(of.place)) - 1); ++size)
    chosen.insert({of.place, of.knobs, size});
}

}  // namespace

// For each size and setting of the switches of a place those that the model of time likes best, the
// best over all, and the neighbors of the best measurements, whatever the model says of them.
std::vector<AutoCandidate> AutoPolicy::Screen(const AutoBelief& belief, const AutoRecord& record) {
  struct Scored {
    double log;
    AutoCandidate candidate;
    bool operator<(const Scored& other) const { return log < other.log; }
  };
  const AutoSpace& space = belief.space();
  std::vector<Scored> all;
  std::set<AutoCandidate> chosen;
  const auto most_of_place = static_cast<int64_t>(kAutoDecisions.most_of_groups) /
                             std::max<int64_t>(space.num_places(), 1);
  for (int64_t place = 0; place < space.num_places(); ++place) {
    const std::vector<int64_t>& sizes = space.sizes(place);
    std::vector<AutoPoint> points;
    std::vector<std::vector<double>> fits;  // The probability of each point, by size.
    for (int64_t knobs = 0; knobs < std::ssize(space.knobs(place)) && !sizes.empty(); ++knobs) {
      points.push_back({space.ConfigOf({place, knobs, 0})});
      fits.push_back(belief.memory().ProbabilitiesFit(points.back().config, sizes));
    }
    std::vector<Scored> kept;
    for (int64_t size = 0; size < std::ssize(sizes); ++size) {
      std::map<uint64_t, std::vector<Scored>> best;
      for (int64_t knobs = 0; knobs < std::ssize(points); ++knobs) {
        if (size >= std::ssize(fits[knobs]) || fits[knobs][size] < kAutoDecisions.possible)
          continue;
        auto& [config, memory_share] = points[knobs];
        config.micro_batch = sizes[size];
        config.accumulation = space.AccumulationOf(sizes[size]);
        memory_share = belief.memory().Share(config);
        if (fits[knobs][size] * belief.failures().ProbabilityRuns(config) < kAutoDecisions.possible)
          continue;
        const Scored scored{belief.LogOf(points[knobs]), {place, knobs, size}};
        all.push_back(scored);
        std::vector<Scored>& group = best[GroupOf(config.knobs)];
        group.push_back(scored);
        std::push_heap(group.begin(), group.end());
        if (group.size() <= kAutoDecisions.per_group) continue;
        std::pop_heap(group.begin(), group.end());
        group.pop_back();
      }
      for (const auto& [key, group] : best)
        kept.insert(kept.end(), group.begin(), group.end());
    }
    std::sort(kept.begin(), kept.end());
    for (int64_t i = 0; i < std::min(std::ssize(kept), most_of_place); ++i)
      chosen.insert(kept[i].candidate);
  }
  const auto end = all.begin() + std::min(all.size(), kAutoDecisions.overall);
  std::partial_sort(all.begin(), end, all.end());
  for (auto scored = all.begin(); scored != end; ++scored)
    chosen.insert(scored->candidate);
  for (const auto& [log, best] :
       RankMeasured(belief, record) | std::views::take(kAutoDecisions.with_neighbors))
    AddNeighbors(space, best, chosen);
  if (chosen.empty() && !space.space().exact && record.successes == 0) return LeastNeeds(belief);
  return {chosen.begin(), chosen.end()};
}

AutoPolicy::AutoPolicy(const AutoBelief& belief, const AutoRecord& record,
                       const SearchOptions& options, const std::vector<AutoCandidate>& screened)
    : belief_(belief), record_(record), options_(options) {
  const AutoSpace& space = belief.space();
  std::set<AutoCandidate> listed;
  const auto add = [&](const AutoConfig& config, const std::optional<AutoCandidate>& candidate) {
    if (candidate && !listed.insert(*candidate).second) return;
    configs_.push_back(config);
    candidates_.push_back(candidate);
    fits_.push_back(belief.ProbabilityFits(config));
  };
  for (const AutoRecord::Measured& m : record.measured) {
    add(m.config, m.candidate);
    fits_.back() = m.HasDroppedOut() ? 0 : 1;
  }
  std::vector<AutoConfig> pending;
  for (const auto& [tag, running] : record.running) {
    if (running.points.empty()) pending.push_back(space.ConfigOf(running.candidate));
    if (running.next) pending.push_back(space.ConfigOf(*running.next));
  }
  for (const AutoConfig& config : pending)
    add(config, space.Find(config));
  for (const auto& [tag, running] : record.running) {
    for (const AutoConfig& config : running.points)
      add(config, space.Find(config));
  }
  num_known_ = num_configs();
  for (const AutoCandidate& candidate : screened) {
    const AutoConfig config = space.ConfigOf(candidate);
    if (!belief.memory().IsRuledOut(config)) add(config, candidate);
  }
  view_ = belief.Look(configs_, pending);
  for (int64_t i = 0; i < num_known_; ++i) {
    if (fits(i) > 0 && (!incumbent_ || mean(i) < mean(*incumbent_))) incumbent_ = i;
  }
}

// How long the training to come takes, in seconds: a larger batch needs fewer steps.
double AutoPolicy::TrainingSeconds() const {
  const AutoConfig& best = config(*incumbent_);
  const std::optional<double> step_s = belief_.StepSeconds(mean(*incumbent_), best);
  const std::optional<int64_t>& run_steps = options_.auto_method.run_steps;
  if (!run_steps || !step_s) return kAutoDecisions.training_per_search * belief_.spent_s();
  double steps = *run_steps;
  if (record_.submitted_samples && !SmallerIsBetter(options_.metric))
    steps *= *record_.submitted_samples / best.samples();
  return steps * *step_s;
}

// How much faster the best pick is expected to be once configuration i was measured.
double AutoPolicy::GainOf(int64_t i) const {
  const int64_t best = *incumbent_;
  if (i == best) return GainOfIncumbent();
  return fits(i) * GainPerLaunch(mean(best) - mean(i), view_.variance[i],
                                 belief_.Covariance(view_, i, best),
                                 belief_.NoiseVariance(config(i)));
}

// The same for the incumbent: it may turn out to be slower than the next best measured one.
double AutoPolicy::GainOfIncumbent() const {
  const int64_t best = *incumbent_;
  double gain = 0;
  for (int64_t i = 0; IsMeasured(i); ++i) {
    if (i == best || fits(i) == 0) continue;
    gain = std::max(gain, GainPerLaunch(mean(best) - mean(i), view_.variance[best],
                                        belief_.Covariance(view_, best, i),
                                        belief_.NoiseVariance(config(best))));
  }
  return gain;
}

// A configuration may be proposed if it was not yet, or to be measured again.
bool AutoPolicy::MayAsk(int64_t i) const {
  if (!candidate(i)) return false;
  if (IsMeasured(i)) {
    const AutoRecord::Measured& measured = record_.measured[i];
    return measured.launches < kAutoDecisions.most_launches_of_one && !measured.HasDroppedOut() &&
           record_.successes >= kAutoDecisions.least_launches && !record_.IsRunning(*candidate(i));
  }
  if (i < num_known_ || record_.proposed.contains(*candidate(i))) return false;
  // The belief of a dry run is narrow enough that few configurations are in between.
  const bool is_narrow = belief_.space().space().tracked;
  return fits(i) >= (is_narrow ? kAutoDecisions.likely : kAutoDecisions.possible);
}

// The chance that a configuration does not fit counts like the loss of this share of a step.
double AutoPolicy::RiskOf(int64_t i) const {
  if (belief_.space().space().exact) return 0;
  // A running trial may soon tell whether it fits, without another launch.
  const double waits = 1 + kAutoDecisions.may_wait * std::ssize(record_.running);
  return kAutoDecisions.misfit_loss * waits * (1 - fits(i));
}

// Whether configuration i differs from the incumbent in keys that most likely change nothing.
bool AutoPolicy::IsUnsettled(int64_t i) const {
  const AutoConfig &ours = config(i), &best = config(*incumbent_);
  for (size_t key = 0; key < std::min(ours.knobs.wide.size(), best.knobs.wide.size()); ++key) {
    const int value = ours.knobs.wide[key], other = best.knobs.wide[key];
    if (value >= 0 && other >= 0 && value != other) return true;
  }
  return false;
}

// Before anything was measured: the best prediction that most probably fits, or what fits most
// probably; of those that are predicted to be about as fast, the one with the shortest step.
std::optional<AutoPolicy::Choice> AutoPolicy::First() const {
  std::optional<int64_t> best;
  const auto rank = [&](int64_t i) {
    return std::pair(std::min(fits(i), kAutoDecisions.first_fits), -mean(i));
  };
  const auto may_ask = [&](int64_t i) {
    return candidate(i) && !record_.proposed.contains(*candidate(i));
  };
  for (int64_t i = 0; i < num_configs(); ++i) {
    if (may_ask(i) && (!best || rank(i) > rank(*best))) best = i;
  }
  if (!best) return std::nullopt;
  const auto [least_fits, log_speed] = rank(*best);
  for (int64_t i = 0; i < num_configs(); ++i) {
    const auto [i_fits, i_log_speed] = rank(i);
    const bool is_near =
        i_fits >= least_fits && i_log_speed > log_speed - std::log(Method::kNearBest);
    if (may_ask(i) && is_near && config(i).samples() < config(*best).samples()) best = i;
  }
  return Choice{.launch = {.candidate = *candidate(*best)}, .gain = 1, .cost_s = 1};
}

// The best expectation with a setting of overlap_comm, or a value of a knob of the user's own, that
// was never launched at its place and may be better than the incumbent: what these change differs
// between stages, so that no other stage tells.
std::optional<AutoPolicy::Choice> AutoPolicy::Uncompared() const {
  const AutoSpace& space = belief_.space();
  const bool overlaps = space.space().workload.data_parallel > 1;
  std::set<std::tuple<int64_t, int64_t, int>> launched;  // Place, knob and value.
  const auto values_of = [&](const AutoConfig& config) {
    std::vector<std::tuple<int64_t, int64_t, int>> values;
    if (overlaps) values.emplace_back(config.place, -1, config.knobs.overlap);
    for (int64_t knob = 0; knob < std::ssize(config.knobs.others); ++knob)
      values.emplace_back(config.place, knob, config.knobs.others[knob]);
    return values;
  };
  const auto add = [&](const AutoConfig& config) {
    for (const auto& value : values_of(config))
      launched.insert(value);
  };
  for (int64_t i = 0; i < num_known_; ++i)
    add(config(i));
  for (const AutoCandidate& proposed : record_.proposed)
    add(space.ConfigOf(proposed));
  std::optional<int64_t> best;
  for (int64_t i = num_known_; i < num_configs(); ++i) {
    if (IsUnsettled(i) || !MayAsk(i) || fits(i) < kAutoDecisions.first_fits) continue;
    if (best && mean(i) >= mean(*best)) continue;
    const auto values = values_of(config(i));
    if (std::ranges::all_of(values, [&](const auto& value) { return launched.contains(value); }))
      continue;
    const double sd = std::sqrt(std::max(DifferenceVariance(i, *incumbent_), 0.0));
    if (mean(i) - kAutoDecisions.plausible_sds * sd < mean(*incumbent_)) best = i;
  }
  if (!best) return std::nullopt;
  return Choice{.launch = {.candidate = *candidate(*best)},
                .gain = GainOf(*best),
                .cost_s = CostOf(*best, fits(*best), /*new_launch=*/true)};
}

// Keys that most likely change nothing wait until everything else is settled, and configurations
// that are not worth their risk until nothing else is worth a launch.
std::optional<AutoPolicy::Choice> AutoPolicy::Best() const {
  std::optional<Choice> settling, unsettled, risky;
  for (int64_t i = 0; i < num_configs(); ++i) {
    if (!MayAsk(i)) continue;
    const Choice choice{.launch = {.candidate = *candidate(i), .repeat = IsMeasured(i)},
                        .gain = GainOf(i),
                        .cost_s = CostOf(i, fits(i), /*new_launch=*/true)};
    // However cheap it is; but few launches do not show what others would gain.
    if (choice.gain < kAutoDecisions.least_gain &&
        record_.successes >= kAutoDecisions.least_launches)
      continue;
    const double risk = RiskOf(i);
    if (choice.gain < kAutoDecisions.at_the_edge * risk) continue;
    std::optional<Choice>& best = choice.gain < risk ? risky
                                  : IsUnsettled(i)   ? unsettled
                                                     : settling;
    if (!best || choice.Rate() > best->Rate()) best = choice;
  }
  if (settling && settling->gain >= kAutoDecisions.settled && IsWorthIt(*settling)) return settling;
  const std::optional<Choice>& best =
      !settling || (unsettled && unsettled->Rate() > settling->Rate()) ? unsettled : settling;
  return best && (IsWorthIt(*best) || !risky) ? best : risky;
}

bool AutoPolicy::IsWorthIt(const Choice& choice) const {
  return choice.gain >= kAutoDecisions.least_gain &&
         choice.gain * TrainingSeconds() >= kAutoDecisions.overrated * choice.cost_s;
}

bool AutoPolicy::IsEnough(const Choice& choice) const {
  if (!incumbent_ || record_.successes < kAutoDecisions.least_launches) return false;
  return !IsWorthIt(choice) ||
         BoundOthers(*incumbent_, Method::kNearBest).at_most <= Method::kNearBest;
}

std::optional<AutoPolicy::Launch> AutoPolicy::NextLaunch() const {
  if (incumbent_) {
    if (const std::optional<Choice> uncompared = Uncompared()) return uncompared->launch;
  }
  const std::optional<Choice> choice = incumbent_ ? Best() : First();
  if (choice && !IsEnough(*choice)) return choice->launch;
  // A submitted configuration that is still the best gets a tag, by a proposal that its trial
  // answers; a point of another launch gets its own.
  if (!incumbent_ || !IsMeasured(*incumbent_)) return std::nullopt;
  const AutoRecord::Measured& best = record_.measured[*incumbent_];
  if (best.tag >= 0 || !best.candidate || record_.proposed.contains(*best.candidate))
    return std::nullopt;
  return Launch{.candidate = *best.candidate, .repeat = !best.leads};
}

std::optional<AutoCandidate> AutoPolicy::NextPoint(const AutoCandidate& running) const {
  if (!incumbent_) return std::nullopt;
  const std::optional<Choice> launch = Best();
  if (!launch || IsEnough(*launch)) return std::nullopt;
  std::optional<Choice> best;
  for (int64_t i = num_known_; i < num_configs(); ++i) {
    if (candidate(i)->place != running.place || candidate(i)->knobs != running.knobs || !MayAsk(i))
      continue;
    const Choice choice{.launch = {.candidate = *candidate(i)},
                        .gain = GainOf(i),
                        .cost_s = CostOf(i, /*fits=*/1, /*new_launch=*/false)};
    if (!best || choice.Rate() > best->Rate()) best = choice;
  }
  if (!best || best->Rate() < launch->Rate() || IsEnough(*best)) return std::nullopt;
  return best->launch.candidate;
}

// The pick and the first of these points, one of those that are alike and equally fast.
std::vector<int64_t> AutoPolicy::Distinct(int64_t pick, const std::vector<int64_t>& points) const {
  std::vector<int64_t> chosen = {pick};
  for (const int64_t i : points) {
    if (chosen.size() == kAutoDecisions.sampled_points) break;
    const bool is_known = std::ranges::any_of(chosen, [&](int64_t other) {
      return config(i).IsLike(config(other)) &&
             DifferenceVariance(i, other) < kAutoDecisions.equal * kAutoDecisions.equal;
    });
    if (!is_known) chosen.push_back(i);
  }
  return chosen;
}

OthersBound AutoPolicy::BoundOthers(int64_t pick, double enough) const {
  // The pick and those that are most likely to beat it.
  std::vector<int64_t> points;
  std::vector<double> threat(num_configs());
  for (int64_t i = 0; i < num_configs(); ++i) {
    if (i == pick || fits(i) < kAutoDecisions.possible) continue;
    points.push_back(i);
    const double at_best = mean(i) - kAutoDecisions.threat_sds * std::sqrt(view_.variance[i]);
    threat[i] = fits(i) * std::max(mean(pick) - at_best, 0.0);
  }
  std::ranges::stable_sort(points, std::greater(), [&](int64_t i) { return threat[i]; });
  const int64_t num_compared = std::ssize(points) + 1;
  points = Distinct(pick, points);
  const int64_t n = std::ssize(points);
  Eigen::MatrixXd covariance(n, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j)
      covariance(i, j) = covariance(j, i) = belief_.Covariance(view_, points[i], points[j]);
    covariance(i, i) += 1e-8;
  }
  const Eigen::LLT<Eigen::MatrixXd> factor(covariance);
  const Eigen::MatrixXd lower = factor.matrixL();
  Rng rng(options_.random_seed, belief_.num_observations(), "others");
  std::vector<double> faster_by;                    // The logarithm of the factor, in each sample.
  double left = 0.05 * kAutoDecisions.num_samples;  // So many draws may be above the bound.
  for (int sample = 0; sample < kAutoDecisions.num_samples && left > 0; ++sample) {
    Eigen::VectorXd normal(n);
    for (int64_t i = 0; i < n; ++i)
      normal[i] = rng.Normal();
    const Eigen::VectorXd drawn = lower.triangularView<Eigen::Lower>() * normal;
    // One draw decides for all points how much memory is left.
    const double memory = rng.Uniform();
    double best = INFINITY, picked = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double value = mean(points[i]) + kAutoDecisions.errors * drawn[i];
      if (i == 0) picked = value;
      if (i == 0 || fits(points[i]) > memory) best = std::min(best, value);
    }
    faster_by.push_back(picked - best);
    if (std::exp(faster_by.back()) > enough) --left;
  }
  const auto bound = faster_by.begin() + static_cast<int64_t>(0.95 * std::ssize(faster_by));
  std::nth_element(faster_by.begin(), bound, faster_by.end());
  return {.at_most = std::exp(*bound), .num_compared = num_compared};
}

// Others are confirmed besides the best if the training to come gains what their launches cost. If
// none is worth that, it is the best one that needs less memory, so that there is another answer if
// the best of all drops out.
std::vector<int64_t> AutoPolicy::Finalists(const std::vector<int64_t>& ranked) const {
  const int64_t pick = ranked[0];
  const double rounds = std::clamp<int64_t>(options_.confirm_rounds, 1, 2);
  std::vector<std::pair<double, int64_t>> others;
  for (const int64_t i : std::span(ranked).subspan(1)) {
    const double variance = std::max(DifferenceVariance(i, pick), 0.0);
    const double noise =
        (belief_.NoiseVariance(config(i)) + belief_.NoiseVariance(config(pick))) / rounds;
    others.emplace_back(ExpectedGain(mean(pick) - mean(i), variance / std::sqrt(variance + noise)),
                        i);
  }
  // Equal gains keep the order of the ranking.
  std::ranges::stable_sort(others, std::greater(), &std::pair<double, int64_t>::first);
  std::vector<int64_t> finalists = {pick};
  for (const auto& [gain, i] : others) {
    const double cost_s = rounds * CostOf(i, /*fits=*/1, /*new_launch=*/true);
    if (finalists.size() == kAutoDecisions.most_finalists || gain * TrainingSeconds() <= cost_s)
      break;
    finalists.push_back(i);
  }
  if (finalists.size() == 1 && ranked.size() > 1) {
    const auto share = [this](int64_t i) { return belief_.memory().Share(config(i)); };
    const auto smaller = std::find_if(ranked.begin() + 1, ranked.end(),
                                      [&](int64_t i) { return share(i) < share(pick); });
    finalists.push_back(smaller == ranked.end() ? ranked[1] : *smaller);
  }
  return finalists;
}

double AutoPolicy::GiveUpBelow() const {
  const bool follows =
      !SmallerIsBetter(options_.metric) ||
      (options_.metric == "latency" && belief_.space().space().samples_per_step > 0);
  if (!follows || record_.measured.empty() || !incumbent_) return 0;
  const double noise = std::sqrt(2 * belief_.NoiseVariance(config(*incumbent_)));
  return record_.best_throughput *
         std::exp(-kAutoDecisions.give_up_sds * noise - kAutoDecisions.give_up);
}

}  // namespace dsat
