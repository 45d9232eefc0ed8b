// Learning from trials, and what follows for any configuration.
#include "methods/auto_belief.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "methods/auto_priors.h"
#include "proto/measuring.h"

namespace dsat {
namespace {

std::optional<Metric> Find(const Measurement& measurement, const std::string& name) {
  const auto found = measurement.find(name);
  if (found == measurement.end() || !(found->second.value > 0)) return std::nullopt;
  return found->second;
}

// The relative variance of a median, from half the interquartile range.
double VarianceOf(const Metric& metric) {
  const double sd =
      metric.samples > 1 ? metric.spread / 0.6745 / metric.value : kAutoResidual.single_sd;
  return std::max(1.57 * sd * sd / std::max<int64_t>(metric.samples, 1),
                  kAutoResidual.least_sd * kAutoResidual.least_sd);
}

void AddParts(const Measurement& measurement, AutoObservation& observation) {
  const auto forward = Find(measurement, "forward"), backward = Find(measurement, "backward"),
             step = Find(measurement, "step"), latency = Find(measurement, "latency");
  if (!forward || !backward || !step || !latency) return;
  const double sum = forward->value + backward->value + step->value;
  if (std::abs(sum / latency->value - 1) > kAutoResidual.most_parts_error) return;
  observation.log_parts = {std::log(forward->value), std::log(backward->value),
                           std::log(step->value)};
  observation.has_parts = true;
}

// Drops what says least about the best configuration: all but about `most` observations, those of
// the best configurations of each place and of all places. Either all of a configuration are kept
// or none, so that no lucky measurement stands alone.
std::vector<AutoObservation> MostTelling(std::vector<AutoObservation> all, size_t most) {
  if (all.size() <= most) return all;
  struct Config {
    int64_t place = 0, count = 0;
    double sum = 0, rank = 0;
  };
  std::map<int64_t, Config> configs;
  for (const AutoObservation& o : all) {
    if (o.same < 0) continue;
    Config& config = configs[o.same];
    config.place = o.point.config.place;
    ++config.count;
    config.sum += o.log_value;
  }
  std::vector<Config*> ranked;
  for (auto& [same, config] : configs)
    ranked.push_back(&config);
  std::ranges::stable_sort(ranked, {},
                           [](const Config* config) { return config->sum / config->count; });
  std::map<int64_t, double> num_at_place;
  for (const Config* config : ranked)
    num_at_place[config->place] = 0;
  double rank = 0;
  for (Config* config : ranked)
    config->rank = std::min(rank++, num_at_place[config->place]++ * num_at_place.size());
  std::ranges::stable_sort(ranked, {}, &Config::rank);
  size_t kept = 0;
  double last = 0;
  for (const Config* config : ranked) {
    if (kept >= most) break;
    kept += config->count;
    last = config->rank;
  }
  std::erase_if(
      all, [&](const AutoObservation& o) { return o.same >= 0 && configs[o.same].rank > last; });
  return all;
}

}  // namespace

AutoBelief::AutoBelief(const SearchSpace& space, const SearchOptions& options)
    : options_(options),
      space_(space, options),
      model_(space, options.metric),
      memory_(space),
      regression_(model_),
      launch_s_(kAutoResidual.launch_s) {
  if (!options.auto_method.prior.is_null())
    StartFrom(EarlierSearchFromJson(options.auto_method.prior));
  HasLearned();
}

std::optional<AutoObservation> AutoBelief::ObservationOf(
    const Trial& trial, const PointResult& result, const std::optional<AutoConfig>& config) const {
  const std::optional<Metric> metric = Find(result.measurement, options_.metric);
  if (!metric || !config) return std::nullopt;
  AutoObservation o;
  o.point.config = *config;
  o.point.config.micro_batch = result.point.micro_batch_size;
  o.point.config.accumulation = result.point.accumulation_steps;
  o.log_value = (SmallerIsBetter(options_.metric) ? 1 : -1) * std::log(metric->value);
  o.variance = VarianceOf(*metric);
  if (trial.kind == TrialKind::kProfile)
    o.other_variance = kAutoResidual.profile_sd * kAutoResidual.profile_sd;
  o.launch = trial.id;
  o.ended_s = trial.times.ended_s;
  o.log_left = LogLeft(trial);
  AddParts(result.measurement, o);
  return o;
}

void AutoBelief::LearnCosts(const Trial& finished) {
  double steps_s = 0, least_s = 0;
  for (const PointResult& result : finished.points) {
    const auto latency = Find(result.measurement, "latency");
    if (!latency) return;
    const double step_s = latency->value / 1e3, point_s = MeasuringSeconds(options_, step_s);
    // Where steps vary, more of them are measured.
    const auto num_steps = options_.start_profile_step + latency->samples;
    steps_s += std::max(point_s, static_cast<double>(num_steps) * step_s);
    least_s += point_s;
  }
  const double took_s = finished.times.ended_s - finished.times.started_s;
  if (took_s <= 0 || finished.kind == TrialKind::kProfile) return;
  const double launch_s = std::max(took_s - steps_s, 0.0);
  const double weight = 1 / ++num_launch_s_;
  launch_s_ += (launch_s - launch_s_) * weight;
  if (least_s > 0) stretch_ += (steps_s / least_s - stretch_) * weight;
}

void AutoBelief::LearnPoint(const PointResult& result, const AutoObservation& observation) {
  const AutoConfig& config = observation.point.config;
  const auto peak = Find(result.measurement, "peak_bytes");
  memory_.Fitted(config, peak ? peak->value : 0);
  if (cold_memory_) cold_memory_->Fitted(config, peak ? peak->value : 0);
  const auto latency = Find(result.measurement, "latency");
  if (latency && !log_step_s_) {
    const double samples = SmallerIsBetter(options_.metric) ? 0 : std::log(config.samples());
    log_step_s_ = std::log(latency->value / 1e3) - observation.log_value - samples;
  }
  const auto known = std::ranges::find_if(
      observations_, [&](const AutoObservation& o) { return o.point.config == config; });
  const int64_t same = known == observations_.end() ? std::ssize(observations_) : known->same;
  observations_.emplace_back(observation).same = same;
}

std::vector<AutoObservation> AutoBelief::Learn(const Trial& finished,
                                               const std::optional<AutoConfig>& config,
                                               int64_t tag) {
  running_.erase(tag);
  const double took_s = finished.times.ended_s - finished.times.started_s;
  if (finished.id >= 0) spent_s_ += took_s > 0 ? took_s : launch_s_;
  std::vector<AutoObservation> observed;
  if (finished.state == TrialState::kInfeasible && config) {
    if (!memory_.DidNotFit(*config, finished.reason)) failures_.Failed(*config);
    if (cold_memory_) cold_memory_->DidNotFit(*config, finished.reason);
  } else if (finished.state == TrialState::kFailed && config) {
    failures_.Failed(*config);
  } else if (finished.state == TrialState::kSucceeded) {
    LearnCosts(finished);
    if (config) failures_.Ran(*config);
    for (const PointResult& result : finished.points) {
      const std::optional<AutoObservation> o = ObservationOf(finished, result, config);
      if (!o) continue;
      LearnPoint(result, *o);
      observed.push_back(*o);
    }
  }
  HasLearned();
  return observed;
}

std::vector<AutoConfig> AutoBelief::LearnRunning(int64_t tag, const Trial& running,
                                                 const AutoConfig& config) {
  std::vector<AutoObservation>& points = running_[tag];
  points.clear();
  std::vector<AutoConfig> configs;
  for (const PointResult& result : running.points) {
    const std::optional<AutoObservation> o = ObservationOf(running, result, config);
    if (!o) continue;
    points.push_back(*o);
    configs.push_back(o->point.config);
  }
  HasLearned();
  return configs;
}

bool AutoBelief::IsDoubtful(const Trial& misfit, const AutoConfig& config) const {
  double peak_bytes = 0;
  for (const PointResult& result : misfit.points) {
    const auto peak = Find(result.measurement, "peak_bytes");
    if (peak) peak_bytes = std::max(peak_bytes, peak->value);
  }
  return memory_.IsDoubtful(config, peak_bytes);
}

// The points of running trials are the latest.
std::vector<AutoObservation> AutoBelief::OwnObservations() const {
  std::vector<AutoObservation> observations = observations_;
  double last_s = 0;
  for (const AutoObservation& o : observations_)
    last_s = std::max(last_s, o.ended_s);
  for (const auto& [tag, points] : running_) {
    for (const AutoObservation& o : points)
      observations.emplace_back(o).ended_s = last_s;
  }
  for (AutoObservation& o : observations)
    o.point.memory_share = memory_.Share(o.point.config);
  return observations;
}

const AutoRegression& AutoBelief::regression() const {
  if (is_fitted_) return regression_;
  constexpr size_t kMost = kAutoDecisions.most_observations;
  std::vector<AutoObservation> observations = MostTelling(OwnObservations(), kMost);
  const size_t room = kMost - std::min(observations.size(), kMost);
  std::ranges::copy_n(earlier_observations_.begin(), std::min(room, earlier_observations_.size()),
                      std::back_inserter(observations));
  regression_.Fit(std::move(observations));
  is_fitted_ = true;
  return regression_;
}

void AutoBelief::HasLearned() {
  is_fitted_ = false;
  if (!cold_memory_ || !ContradictsEarlier()) return;
  earlier_observations_.clear();
  memory_ = *cold_memory_;
  cold_memory_.reset();
  regression_ = AutoRegression(model_);
  is_fitted_ = false;
}

AutoRegression::View AutoBelief::Look(const std::vector<AutoConfig>& configs,
                                      const std::vector<AutoConfig>& pending) const {
  const auto points_of = [this](const std::vector<AutoConfig>& all) {
    std::vector<AutoPoint> points;
    for (const AutoConfig& config : all)
      points.push_back(PointOf(config));
    return points;
  };
  return regression().Look(points_of(configs), points_of(pending));
}

std::optional<double> AutoBelief::StepSeconds(double log_value, const AutoConfig& config) const {
  if (!log_step_s_) return std::nullopt;
  const double samples = SmallerIsBetter(options_.metric) ? 0 : std::log(config.samples());
  return std::exp(std::min(log_value + samples + *log_step_s_, 20.0));
}

double AutoBelief::TrialSeconds(double log_value, const AutoConfig& config, double fits,
                                bool new_launch) const {
  const double launch_s = new_launch ? launch_s_ : 0;
  const double run_s =
      launch_s + stretch_ * MeasuringSeconds(options_, StepSeconds(log_value, config).value_or(1));
  // An exact prediction refuses at no cost.
  const double launched =
      space_.space().exact ? std::max(memory_.ProbabilityFits(config), fits) : 1;
  return fits * run_s + (launched - fits) * launch_s + 1e-3;
}

std::string AutoBelief::BoundOf(const AutoConfig& config) const {
  const AutoTimeModel::Shares shares = model_.SharesOf(config, regression().parameters());
  const std::vector<std::pair<double, const char*>> parts = {
      {shares.compute, "compute"},
      {shares.communication, "communication"},
      {shares.update, "the optimizer"},
      {shares.overhead, "fixed costs of micro-batches and steps"}};
  const auto most = std::max_element(parts.begin(), parts.end());
  std::string text =
      fmt::format("bound by {} ({:.0f} % of a step)", most->second, 100 * most->first);
  if (most->second != parts[1].second && shares.communication > 0.005)
    text += fmt::format("; exposed communication takes {:.0f} %", 100 * shares.communication);
  const std::vector<int64_t>& sizes = space_.sizes(config.place);
  const auto larger = std::ranges::upper_bound(sizes, config.micro_batch);
  if (larger == sizes.end()) return text;
  AutoConfig next = config;
  next.micro_batch = *larger;
  next.accumulation = space_.AccumulationOf(next.micro_batch);
  const bool full = memory_.IsRuledOut(next) || memory_.ProbabilityFits(next) < 0.5;
  const double gain = LogOf(PointOf(config)) - LogOf({next, memory_.Share(config)});
  if (full && gain > 0.001)
    text += fmt::format("; a larger device memory would allow micro-batch {}", *larger);
  return text;
}

}  // namespace dsat
