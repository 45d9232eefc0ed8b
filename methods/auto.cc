// What the method learns from trials, and its answers.
#include "methods/auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "proto/measuring.h"

namespace dsat {
namespace {

// After so many failures and no success the method gives up.
constexpr int64_t kMostFailures = 16;
constexpr int64_t kMostPoints = 8;  // Of one launch.
// A decision takes time with the cube of the measurements: beyond so many, those of an earlier
// search make room.
constexpr size_t kMostObservations = 80;

std::optional<Metric> Find(const Measurement& measurement, const std::string& name) {
  const auto found = measurement.find(name);
  if (found == measurement.end() || !(found->second.value > 0)) return std::nullopt;
  return found->second;
}

// The relative variance of a median, from half the interquartile range.
double VarianceOf(const Metric& metric) {
  const double sd = metric.samples > 1 ? metric.spread / 0.6745 / metric.value : 0.015;
  const auto samples = static_cast<double>(std::max<int64_t>(metric.samples, 1));
  return std::max(1.57 * sd * sd / samples, 0.002 * 0.002);
}

void AddParts(const Measurement& measurement, AutoObservation& observation) {
  const auto forward = Find(measurement, "forward"), backward = Find(measurement, "backward"),
             step = Find(measurement, "step"), latency = Find(measurement, "latency");
  if (!forward || !backward || !step || !latency) return;
  // Parts that are not parts of this whole would mislead.
  const double sum = forward->value + backward->value + step->value;
  if (std::abs(sum / latency->value - 1) > 0.35) return;
  observation.log_parts = {std::log(forward->value), std::log(backward->value),
                           std::log(step->value)};
  observation.has_parts = true;
}

}  // namespace

AutoMethod::AutoMethod(const SearchSpace& space, const SearchOptions& options)
    : options_(options),
      space_(space, options),
      model_(space, options.metric),
      memory_(space),
      regression_(model_) {
  if (!options.auto_method.prior.is_null()) StartFrom(EarlierSearchFromJson(options.auto_method.prior));
}

AutoPoint AutoMethod::PointOf(const AutoConfig& config) const {
  return {config, memory_.Share(config)};
}

double AutoMethod::ProbabilityFits(const AutoConfig& config) const {
  return memory_.ProbabilityFits(config) * failures_.ProbabilityRuns(config);
}

std::vector<AutoObservation> AutoMethod::ObservationsOf(const Trial& trial,
                                                        const AutoConfig* proposed) const {
  std::vector<AutoObservation> observations;
  for (const PointResult& result : trial.points) {
    const std::optional<Metric> metric = Find(result.measurement, options_.metric);
    if (!metric) continue;
    std::optional<AutoConfig> config;
    if (proposed != nullptr) {
      config = *proposed;
      config->micro_batch = static_cast<double>(result.point.micro_batch_size);
      config->accumulation = static_cast<double>(result.point.accumulation_steps);
    } else {
      config = space_.ConfigOf(trial, result.point);
    }
    if (!config) continue;
    const double sign = SmallerIsBetter(options_.metric) ? 1 : -1;
    AutoObservation& o = observations.emplace_back();
    o.point = {*config, 0};
    o.log_value = sign * std::log(metric->value);
    o.variance = VarianceOf(*metric);
    // Few steps, and the first ones.
    if (trial.kind == TrialKind::kProfile) o.other_variance = 0.15 * 0.15;
    o.launch = trial.id;
    o.ended_s = trial.times.ended_s;
    AddParts(result.measurement, o);
  }
  return observations;
}

void AutoMethod::LearnCosts(const Trial& finished) {
  double steps_s = 0;
  for (const PointResult& result : finished.points) {
    const auto latency = Find(result.measurement, "latency");
    if (!latency) return;
    steps_s += MeasuringSeconds(options_, latency->value / 1e3);
  }
  if (finished.times.ended_s <= finished.times.started_s || finished.kind == TrialKind::kProfile)
    return;
  const double launch_s =
      std::max(finished.times.ended_s - finished.times.started_s - steps_s, 0.0);
  launch_s_ =
      num_launch_s_ == 0 ? launch_s : (launch_s_ * num_launch_s_ + launch_s) / (num_launch_s_ + 1);
  ++num_launch_s_;
}

void AutoMethod::Learn(const Trial& finished, const AutoConfig* proposed, int64_t tag) {
  // The result of one trial may answer several proposals.
  if (finished.id >= 0 && !learned_.insert(finished.id).second) return;
  fresh_ = false;
  const double took_s = finished.times.ended_s - finished.times.started_s;
  if (finished.id >= 0) spent_s_ += took_s > 0 ? took_s : launch_s_;
  const Point point = ConfigPoint(finished);
  if (finished.kind == TrialKind::kSubmitted)
    submitted_samples_ = static_cast<double>(point.micro_batch_size * point.accumulation_steps);
  const std::optional<AutoConfig> config =
      proposed != nullptr ? *proposed : space_.ConfigOf(finished, point);
  if (finished.state == TrialState::kInfeasible) {
    if (!config) return;
    LearnFailure(*config, /*is_final=*/true);
    if (!memory_.DidNotFit(*config, finished.reason)) failures_.Failed(*config);
    if (cold_memory_) cold_memory_->DidNotFit(*config, finished.reason);
    return;
  }
  if (finished.state == TrialState::kFailed) {
    ++failures_in_a_row_;
    if (config) LearnFailure(*config, /*is_final=*/false);
    if (config) failures_.Failed(*config);
  }
  if (finished.state != TrialState::kSucceeded) return;
  failures_in_a_row_ = 0;
  LearnCosts(finished);
  std::vector<AutoObservation> observations = ObservationsOf(finished, proposed);
  if (finished.kind != TrialKind::kProfile && !observations.empty()) ++successes_;
  if (config) failures_.Ran(*config);
  const PointResult* const best = BestPoint(finished, options_.metric);
  for (AutoObservation& o : observations) {
    const auto result =
        std::find_if(finished.points.begin(), finished.points.end(), [&](const PointResult& r) {
          return static_cast<double>(r.point.micro_batch_size) == o.point.config.micro_batch;
        });
    const auto peak = Find(result->measurement, "peak_bytes");
    memory_.Fitted(o.point.config, peak ? peak->value : 0);
    if (cold_memory_) cold_memory_->Fitted(o.point.config, peak ? peak->value : 0);
    const auto throughput = Find(result->measurement, "throughput");
    throughputs_.push_back(throughput ? throughput->value : 0);
    const auto latency = Find(result->measurement, "latency");
    if (latency && !log_step_s_) {
      const double samples =
          SmallerIsBetter(options_.metric) ? 0 : std::log(o.point.config.samples());
      log_step_s_ = std::log(latency->value / 1e3) - o.log_value - samples;
    }
    observations_.push_back(o);
    if (finished.kind != TrialKind::kProfile) LearnPoint(o, &*result == best, tag);
  }
}

void AutoMethod::LearnPoint(const AutoObservation& observation, bool leads, int64_t tag) {
  const AutoConfig& config = observation.point.config;
  const auto is_it = [&](const Measured& m) { return m.point.config == config; };
  auto known = std::ranges::find_if(measured_, is_it);
  if (known == measured_.end())
    known = measured_.insert(known, {.point = observation.point, .candidate = space_.Find(config)});
  ++known->launches;
  known->leads |= leads;
  if (leads && known->tag < 0) known->tag = tag;
  if (!known->HasDroppedOut()) known->failures = 0;
}

// What runs out of memory in a later launch, or fails in several, is no answer.
void AutoMethod::LearnFailure(const AutoConfig& config, bool is_final) {
  for (Measured& m : measured_)
    if (m.point.config == config) m.failures += is_final ? kMostFailuresOfOne : 1;
}

void AutoMethod::Tell(int64_t tag, const Trial& finished) {
  Asked& asked = asked_.at(static_cast<size_t>(tag));
  asked.running = false;
  const AutoConfig config = space_.ConfigOf(asked.candidate);
  Learn(finished, &config, tag);
  // A proposal that was answered by an earlier trial names its configuration from now on.
  for (Measured& m : measured_) {
    const bool has_run = m.leads && finished.state == TrialState::kSucceeded;
    if (m.tag < 0 && has_run && m.candidate == asked.candidate) m.tag = tag;
  }
  asked.points.clear();
  fresh_ = false;
}

void AutoMethod::Observe(const Trial& finished) {
  Learn(finished, nullptr, -1);
}

// With those of running proposals, which are the latest.
std::vector<AutoObservation> AutoMethod::OwnObservations() const {
  std::vector<AutoObservation> observations = observations_;
  double last_s = 0;
  for (const AutoObservation& o : observations_)
    last_s = std::max(last_s, o.ended_s);
  for (const Asked& asked : asked_) {
    if (!asked.running) continue;
    for (const AutoObservation& o : asked.points) {
      observations.push_back(o);
      observations.back().ended_s = last_s;
    }
  }
  for (AutoObservation& o : observations)
    o.point.memory_share = memory_.Share(o.point.config);
  return observations;
}

// Fits the models to what was told and forgets candidates that cannot be the best.
void AutoMethod::Refresh() {
  if (fresh_) return;
  const auto fit = [&] {
    std::vector<AutoObservation> observations = OwnObservations();
    const size_t room = kMostObservations - std::min(observations.size(), kMostObservations);
    const auto count = static_cast<std::ptrdiff_t>(std::min(room, earlier_observations_.size()));
    observations.insert(observations.end(), earlier_observations_.begin(),
                        earlier_observations_.begin() + count);
    regression_.Fit(std::move(observations));
  };
  fit();
  if (cold_memory_) {
    CheckEarlier();
    if (!cold_memory_) fit();
  }
  for (Measured& m : measured_)
    m.point.memory_share = memory_.Share(m.point.config);
  screened_ = Screen();
  fresh_ = true;
}

std::vector<AutoPoint> AutoMethod::Pending() const {
  std::vector<AutoPoint> pending;
  for (const Asked& asked : asked_) {
    if (!asked.running) continue;
    if (asked.points.empty()) pending.push_back(PointOf(space_.ConfigOf(asked.candidate)));
    if (asked.next) pending.push_back(PointOf(space_.ConfigOf(*asked.next)));
  }
  return pending;
}

std::optional<Proposal> AutoMethod::Ask() {
  if (successes_ == 0 && failures_in_a_row_ >= kMostFailures) return std::nullopt;
  Refresh();
  const Outlook outlook = LookAround();
  std::optional<Choice> choice = outlook.incumbent ? Best(outlook) : First(outlook);
  // Nothing is worth a launch: a submitted configuration that is still the best gets a tag, by a
  // proposal that its trial answers; a point of another launch gets its own.
  if (!choice || IsEnough(outlook, *choice)) {
    const auto index = outlook.incumbent.value_or(0);
    const auto best = static_cast<size_t>(index);
    if (!outlook.incumbent || best >= measured_.size()) return std::nullopt;
    const Measured& incumbent = measured_[best];
    if (incumbent.tag >= 0 || !incumbent.candidate || times_asked_.contains(*incumbent.candidate))
      return std::nullopt;
    choice = Choice{.candidate = *incumbent.candidate, .repeat = !incumbent.leads};
  }
  const auto tag = static_cast<int64_t>(asked_.size());
  Proposal proposal{.assignment = space_.AssignmentOf(choice->candidate),
                    .tag = tag,
                    .repeat = choice->repeat,
                    .give_up_below = choice->repeat ? 0 : GiveUpBelow(outlook)};
  asked_.push_back({.candidate = choice->candidate});
  ++times_asked_[choice->candidate];
  return proposal;
}

std::optional<Point> AutoMethod::NextPoint(int64_t tag, const Trial& running) {
  Asked& asked = asked_.at(static_cast<size_t>(tag));
  const AutoConfig config = space_.ConfigOf(asked.candidate);
  asked.points = ObservationsOf(running, &config);
  asked.next.reset();
  fresh_ = false;
  if (asked.points.empty() || std::ssize(running.points) >= kMostPoints) return std::nullopt;
  Refresh();
  const Outlook outlook = LookAround();
  if (!outlook.incumbent) return std::nullopt;
  const std::optional<Choice> launch = Best(outlook);
  if (!launch || IsEnough(outlook, *launch)) return std::nullopt;
  std::optional<Choice> best;
  for (size_t i = outlook.num_known; i < outlook.candidates.size(); ++i) {
    const std::optional<AutoCandidate>& candidate = outlook.candidates[i];
    const auto index = static_cast<Eigen::Index>(i);
    if (!candidate || candidate->place != asked.candidate.place ||
        candidate->knobs != asked.candidate.knobs || !MayAsk(outlook, index))
      continue;
    const Choice choice{
        .candidate = *candidate,
        .gain = GainOf(outlook, index),
        .cost_s = CostOf(outlook.view.mean[index], outlook.view.points[i].config, 1, false)};
    if (!best || choice.gain / choice.cost_s > best->gain / best->cost_s) best = choice;
  }
  if (!best || best->gain / best->cost_s < launch->gain / launch->cost_s ||
      IsEnough(outlook, *best))
    return std::nullopt;
  asked.next = best->candidate;
  const AutoConfig next = space_.ConfigOf(best->candidate);
  return Point{.micro_batch_size = static_cast<int64_t>(next.micro_batch),
               .accumulation_steps = static_cast<int64_t>(next.accumulation)};
}

Conclusion AutoMethod::Conclude() const {
  AutoMethod copy = *this;  // Whose caches may change.
  copy.Refresh();
  Conclusion conclusion;
  conclusion.num_considered = space_.num_configs();
  conclusion.drift = copy.regression_.Drift();
  conclusion.warm_start = copy.warm_start_;
  const Outlook outlook = copy.LookAround();
  std::vector<size_t> ranked;
  for (size_t i = 0; i < measured_.size(); ++i) {
    if (measured_[i].tag >= 0 && !measured_[i].HasDroppedOut()) ranked.push_back(i);
  }
  const auto mean = [&](size_t i) { return outlook.view.mean[static_cast<Eigen::Index>(i)]; };
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](size_t a, size_t b) { return mean(a) < mean(b); });
  if (ranked.empty()) return conclusion;
  for (const size_t i : ranked)
    conclusion.speeds.emplace_back(measured_[i].tag, std::exp(mean(ranked[0]) - mean(i)));
  for (const size_t i : copy.Finalists(outlook, ranked))
    conclusion.finalists.push_back(measured_[i].tag);
  return conclusion;
}

std::optional<size_t> AutoMethod::MeasuredOf(const Trial& trial) const {
  const PointResult* best = BestPoint(trial, options_.metric);
  if (best == nullptr) return std::nullopt;
  const std::optional<AutoConfig> config = space_.ConfigOf(trial, best->point);
  const auto found = std::ranges::find_if(
      measured_, [&](const Measured& m) { return config && m.point.config == *config; });
  if (found == measured_.end()) return std::nullopt;
  return found - measured_.begin();
}

std::string AutoMethod::BoundOf(const Trial& pick) const {
  const std::optional<size_t> found = MeasuredOf(pick);
  if (!found) return "";
  AutoMethod copy = *this;  // Whose caches may change.
  copy.Refresh();
  return copy.BoundOf(measured_[*found].point.config);
}

std::optional<double> AutoMethod::ProbabilityNearBest(const Trial& pick) const {
  const std::optional<size_t> found = MeasuredOf(pick);
  if (!found) return std::nullopt;
  AutoMethod copy = *this;  // Whose caches may change.
  copy.Refresh();
  const Outlook outlook = copy.LookAround();
  // Of nothing but configurations outside the space, which is the best says nothing.
  if (std::ranges::none_of(outlook.candidates, [](const auto& c) { return c.has_value(); }))
    return std::nullopt;
  return copy.ProbabilityNearBest(outlook, static_cast<Eigen::Index>(*found));
}

std::vector<AutoMethod::Expected> AutoMethod::BestExpected(size_t count) const {
  AutoMethod copy = *this;  // Whose caches may change.
  copy.Refresh();
  const Outlook outlook = copy.LookAround();
  const auto mean = [&](size_t i) { return outlook.view.mean[static_cast<Eigen::Index>(i)]; };
  std::vector<size_t> ranked;
  for (size_t i = 0; i < outlook.candidates.size(); ++i) {
    if (outlook.candidates[i] && outlook.fits[i] >= 0.5) ranked.push_back(i);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](size_t a, size_t b) { return mean(a) < mean(b); });
  std::vector<Expected> best;
  for (const size_t i : ranked) {
    if (best.size() == count) break;
    const AutoConfig& config = outlook.view.points[i].config;
    best.push_back({.assignment = space_.AssignmentOf(*outlook.candidates[i]),
                    .fits = outlook.fits[i],
                    .factor = std::exp(mean(i) - mean(ranked[0])),
                    .step_ms = log_step_s_ ? 1e3 * copy.StepSeconds(mean(i), config) : 0});
  }
  return best;
}

std::string AutoMethod::BoundOf(const AutoConfig& config) const {
  const AutoTimeModel::Shares shares = model_.SharesOf(config, regression_.parameters());
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
  AutoConfig next = config;
  for (const int64_t size : sizes) {
    next.micro_batch = static_cast<double>(size);
    next.accumulation = space_.AccumulationOf(next.micro_batch);
    if (size <= static_cast<int64_t>(config.micro_batch)) continue;
    const bool full = memory_.IsRuledOut(next) || memory_.ProbabilityFits(next) < 0.5;
    const double gain =
        regression_.LogOf(PointOf(config)) - regression_.LogOf({next, memory_.Share(config)});
    if (full && gain > 0.001)
      text += fmt::format("; a larger device memory would allow micro-batch {}", size);
    break;
  }
  return text;
}

}  // namespace dsat
