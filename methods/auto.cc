// Hands trials to the belief and the record, and their questions to the policy.
#include "methods/auto.h"

#include <algorithm>
#include <cmath>

namespace dsat {
namespace {

// The best `ranked` come first; equal ones keep their order.
void Rank(const AutoPolicy& policy, std::vector<int64_t>& ranked) {
  std::ranges::stable_sort(ranked, {}, [&](int64_t i) { return policy.mean(i); });
}

}  // namespace

void AutoMethod::Record(const AutoConfig& config, bool leads, int64_t tag) {
  auto known = std::ranges::find(record_.measured, config, &AutoRecord::Measured::config);
  if (known == record_.measured.end())
    known = record_.measured.insert(known, {.config = config, .candidate = space().Find(config)});
  ++known->launches;
  known->leads |= leads;
  if (leads && known->tag < 0) known->tag = tag;
  if (!known->HasDroppedOut()) known->failures = 0;
}

void AutoMethod::Learn(const Trial& finished, const std::optional<AutoConfig>& config,
                       int64_t tag) {
  // The result of one trial may answer several proposals.
  if (finished.id >= 0 && !learned_.insert(finished.id).second) return belief_.Forget(tag);
  const std::vector<AutoObservation> observed = belief_.Learn(finished, config, tag);
  if (finished.kind == TrialKind::kSubmitted) {
    const Point point = ConfigPoint(finished);
    record_.submitted_samples = point.micro_batch_size * point.accumulation_steps;
  }
  const bool is_misfit = finished.state == TrialState::kInfeasible;
  if (is_misfit || finished.state == TrialState::kFailed) {
    // A configuration that runs out of memory in a later launch, or fails in several, is no
    // answer.
    for (AutoRecord::Measured& m : record_.measured) {
      if (config && m.config == *config)
        m.failures += is_misfit ? kAutoDecisions.most_failures_of_one : 1;
    }
    if (!is_misfit) ++record_.failures_in_a_row;
  }
  if (finished.state != TrialState::kSucceeded) return;
  record_.failures_in_a_row = 0;
  for (const PointResult& result : finished.points) {
    const auto found = result.measurement.find("throughput");
    if (config && found != result.measurement.end())
      record_.best_throughput = std::max(record_.best_throughput, found->second.value);
  }
  if (finished.kind == TrialKind::kProfile || observed.empty()) return;
  ++record_.successes;
  const PointResult* const best = BestPoint(finished, options_.metric);
  for (const AutoObservation& o : observed) {
    const AutoConfig& measured = o.point.config;
    Record(measured, best != nullptr && best->point.micro_batch_size == measured.micro_batch, tag);
  }
}

void AutoMethod::Tell(int64_t tag, const Trial& finished) {
  const AutoCandidate candidate = record_.running.extract(tag).mapped().candidate;
  screened_.reset();
  const AutoConfig config = space().ConfigOf(candidate);
  // A configuration that has run has shown that it fits; and where nothing has run, it is no
  // chance.
  const auto known = std::ranges::find(record_.measured, config, &AutoRecord::Measured::config);
  if (finished.state == TrialState::kInfeasible && record_.successes > 0 &&
      known == record_.measured.end() && belief_.IsDoubtful(finished, config) &&
      record_.doubted.insert(candidate).second) {
    record_.to_repeat.push_back(candidate);
    return belief_.Forget(tag);
  }
  Learn(finished, config, tag);
  // A proposal that was answered by an earlier trial names its configuration from now on.
  for (AutoRecord::Measured& m : record_.measured) {
    const bool has_run = m.leads && finished.state == TrialState::kSucceeded;
    if (m.tag < 0 && has_run && m.candidate == candidate) m.tag = tag;
  }
}

void AutoMethod::Observe(const Trial& finished) {
  screened_.reset();
  Learn(finished, space().ConfigOf(finished, ConfigPoint(finished)), /*tag=*/-1);
}

AutoPolicy AutoMethod::Policy() const {
  return {belief_, record_, options_,
          screened_ ? *screened_ : AutoPolicy::Screen(belief_, record_)};
}

std::optional<Proposal> AutoMethod::Ask() {
  if (record_.successes == 0 && record_.failures_in_a_row >= kAutoDecisions.most_failures)
    return std::nullopt;
  if (!screened_) screened_ = AutoPolicy::Screen(belief_, record_);
  const AutoPolicy policy = Policy();
  std::optional<AutoPolicy::Launch> launch;
  if (record_.to_repeat.empty()) {
    launch = policy.NextLaunch();
  } else {
    launch = {.candidate = record_.to_repeat.back(), .repeat = true};
    record_.to_repeat.pop_back();
  }
  if (!launch) return std::nullopt;
  return Propose(*launch, launch->repeat ? 0 : policy.GiveUpBelow());
}

std::optional<Proposal> AutoMethod::Replay(const std::optional<Assignment>& recorded) {
  if (!recorded) return std::nullopt;
  const std::optional<AutoCandidate> candidate = space().Find(*recorded);
  if (!candidate) return Ask();  // It proposes something else.
  if (!record_.to_repeat.empty()) record_.to_repeat.pop_back();
  return Propose({.candidate = *candidate}, /*give_up_below=*/0);
}

Proposal AutoMethod::Propose(const AutoPolicy::Launch& launch, double give_up_below) {
  Proposal proposal{.assignment = space().AssignmentOf(launch.candidate),
                    .tag = record_.num_proposals++,
                    .repeat = launch.repeat,
                    .give_up_below = give_up_below};
  record_.running[proposal.tag] = {.candidate = launch.candidate};
  record_.proposed.insert(launch.candidate);
  return proposal;
}

void AutoMethod::Measured(int64_t tag, const Trial& running) {
  AutoRecord::Running& measured = record_.running.at(tag);
  screened_.reset();
  measured.points = belief_.LearnRunning(tag, running, space().ConfigOf(measured.candidate));
  measured.next.reset();
}

std::optional<Point> AutoMethod::NextPoint(int64_t tag, const Trial& running) {
  AutoRecord::Running& measured = record_.running.at(tag);
  if (measured.points.empty() || std::ssize(running.points) >= kAutoDecisions.most_points)
    return std::nullopt;
  measured.next = Policy().NextPoint(measured.candidate);
  if (!measured.next) return std::nullopt;
  const AutoConfig next = space().ConfigOf(*measured.next);
  return Point{.micro_batch_size = next.micro_batch, .accumulation_steps = next.accumulation};
}

Conclusion AutoMethod::Conclude() const {
  Conclusion conclusion;
  conclusion.drift = belief_.Drift();
  conclusion.warm_start = belief_.warm_start();
  std::vector<int64_t> ranked;
  for (int64_t i = 0; i < std::ssize(record_.measured); ++i) {
    if (record_.measured[i].tag >= 0 && !record_.measured[i].HasDroppedOut()) ranked.push_back(i);
  }
  if (ranked.empty()) return conclusion;
  const AutoPolicy policy = Policy();
  Rank(policy, ranked);
  for (const int64_t i : ranked)
    conclusion.speeds.emplace_back(record_.measured[i].tag,
                                   std::exp(policy.mean(ranked[0]) - policy.mean(i)));
  for (const int64_t i : policy.Finalists(ranked))
    conclusion.finalists.push_back(record_.measured[i].tag);
  return conclusion;
}

std::optional<int64_t> AutoMethod::MeasuredOf(const Trial& trial) const {
  const PointResult* best = BestPoint(trial, options_.metric);
  if (best == nullptr) return std::nullopt;
  const std::optional<AutoConfig> config = space().ConfigOf(trial, best->point);
  const auto found = std::ranges::find(record_.measured, config, &AutoRecord::Measured::config);
  if (found == record_.measured.end()) return std::nullopt;
  return found - record_.measured.begin();
}

std::optional<Point> AutoMethod::LargerBatch(const Trial& pick) const {
  const std::optional<int64_t> found = MeasuredOf(pick);
  if (!found || SmallerIsBetter(options_.metric)) return std::nullopt;
  const AutoConfig& kept = record_.measured[*found].config;
  std::vector<AutoConfig> configs = {kept};
  for (int64_t times = 2; times <= kAutoDecisions.most_times_batch; times *= 2) {
    for (int64_t size_times = 1; kept.accumulation * times % size_times == 0; size_times *= 2) {
      AutoConfig config = kept;
      config.micro_batch *= size_times;
      config.accumulation = kept.accumulation * times / size_times;
      if (belief_.ProbabilityFits(config) >= kAutoDecisions.first_fits) configs.push_back(config);
    }
  }
  const AutoRegression::View view = belief_.Look(configs, {});
  // The smallest batch that gains nearly as much as the best.
  const double most = view.mean[0] - view.mean.minCoeff();
  if (most < kAutoDecisions.larger_batch) return std::nullopt;
  std::optional<int64_t> best;
  for (int64_t i = 1; i < std::ssize(configs); ++i) {
    if (view.mean[0] - view.mean[i] < kAutoDecisions.enough_of_it * most) continue;
    const bool is_smaller = !best || configs[i].samples() < configs[*best].samples();
    const bool is_equal = best && configs[i].samples() == configs[*best].samples();
    if (is_smaller || (is_equal && view.mean[i] < view.mean[*best])) best = i;
  }
  return Point{.micro_batch_size = configs[*best].micro_batch,
               .accumulation_steps = configs[*best].accumulation};
}

std::string AutoMethod::BoundOf(const Trial& pick) const {
  const std::optional<int64_t> found = MeasuredOf(pick);
  return found ? belief_.BoundOf(record_.measured[*found].config) : "";
}

std::optional<double> AutoMethod::LaunchNoise() const {
  if (belief_.num_observations() < 2 || record_.measured.empty()) return std::nullopt;
  double variance = 0;
  for (const AutoRecord::Measured& one : record_.measured)
    variance += belief_.NoiseVariance(one.config);
  return std::sqrt(variance / static_cast<double>(record_.measured.size()));
}

std::optional<OthersBound> AutoMethod::BoundOthers(const Trial& pick) const {
  const std::optional<int64_t> found = MeasuredOf(pick);
  if (!found) return std::nullopt;
  const AutoPolicy policy = Policy();
  // If all configurations are outside the space, the best of them is not that of the space.
  for (int64_t i = 0; i < policy.num_configs(); ++i)
    if (policy.candidate(i)) return policy.BoundOthers(*found);
  return std::nullopt;
}

std::vector<AutoMethod::Expected> AutoMethod::BestExpected(size_t count) const {
  const AutoPolicy policy = Policy();
  std::vector<int64_t> ranked;
  for (int64_t i = 0; i < policy.num_configs(); ++i) {
    if (policy.candidate(i) && policy.fits(i) >= 0.5) ranked.push_back(i);
  }
  Rank(policy, ranked);
  std::vector<Expected> best;
  for (const int64_t i : ranked) {
    if (best.size() == count) break;
    const double mean = policy.mean(i);
    best.push_back({.assignment = space().AssignmentOf(*policy.candidate(i)),
                    .fits = policy.fits(i),
                    .factor = std::exp(mean - policy.mean(ranked[0])),
                    .step_ms = 1e3 * belief_.StepSeconds(mean, policy.config(i)).value_or(0)});
  }
  return best;
}

}  // namespace dsat
