// The terms of a step, and what the machine's speeds say of them beforehand.
#include "methods/auto_time_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unsupported/Eigen/AutoDiff>
#include <utility>

#include "methods/auto_priors.h"

namespace dsat {
namespace {

using std::exp, std::log, std::sqrt;

// The passes of a step whose forecast has times, per sample.
double SampleMs(const Forecast& forecast) {
  return forecast.compute_ms / (forecast.micro_batch_size * forecast.accumulation_steps);
}

// How many of the two a place offloads.
double NumOffloaded(const StageSpace& place) {
  double count = 0;
  for (const char* const key :
       {"/zero_optimization/offload_optimizer/device", "/zero_optimization/offload_param/device"}) {
    const auto device = place.settings.find(key);
    if (device != place.settings.end() && device->second != "none") ++count;
  }
  return count;
}

double ValueOf(double x) {
  return x;
}

template <typename Derivatives>
double ValueOf(const Eigen::AutoDiffScalar<Derivatives>& x) {
  return x.value();
}

// The larger of x and 0, smoothed over a part of `scale`, which counts as a constant.
template <typename T>
T SoftPositive(const T& x, const T& scale) {
  const double width = kAutoTimes.softness * ValueOf(scale);
  return 0.5 * (x + sqrt(x * x + width * width + 1e-18));
}

}  // namespace

AutoTimeModel::AutoTimeModel(const SearchSpace& space, const std::string& metric)
    : space_(space),
      objective_(metric == "forward"    ? Part::kForward
                 : metric == "backward" ? Part::kBackward
                                        : Part::kObjective),
      per_sample_(!SmallerIsBetter(metric)),
      ranks_(std::max<int64_t>(space.workload.data_parallel, 1)),
      params_(std::max<int64_t>(space.workload.num_params, 0)) {
  SetPrior();
}

void AutoTimeModel::SetPrior() {
  const Workload& workload = space_.workload;
  const auto set = [&](int parameter, double mean, double sd) {
    prior_mean_[parameter] = mean;
    prior_sd_[parameter] = sd;
  };
  const auto set_to = [&](int parameter, const AutoPriors::Normal& prior) {
    set(parameter, prior.mean, prior.sd);
  };
  // The time of a sample, by what the engine predicts or by the speed of the device.
  double sample_ms = 0, link_ms = 0, update_ms = 0;
  for (const StageSpace& stage : space_.stages) {
    for (const Forecast& forecast : stage.forecasts) {
      if (forecast.compute_ms <= 0) continue;
      const double this_ms = SampleMs(forecast);
      // A place that computes or moves more than others says nothing of these.
      if (!stage.settings.empty() && sample_ms > 0 && this_ms > 0.999 * sample_ms) continue;
      sample_ms = this_ms;
      if (forecast.link_ms > 0) link_ms = forecast.link_ms / (stage.stage == 3 ? 3 : 2);
      if (forecast.update_ms > 0) update_ms = forecast.update_ms * (stage.stage == 0 ? 1 : ranks_);
    }
  }
  if (sample_ms == 0 && workload.matmul_flops_per_s > 0)
    sample_ms = 1e3 * 3 * workload.forward_flops_per_sample /
                (kAutoTimes.matmul_efficiency * workload.matmul_flops_per_s);
  const bool known = sample_ms > 0;
  SetExtras(sample_ms);
  // The logarithm of a time in samples, within a range.
  const auto log_samples = [&](double ms, double least, double most, double unknown) {
    return known ? std::log(std::clamp(ms / sample_ms, least, most)) : unknown;
  };
  const double send_ms = params_ * workload.bytes_per_param / kAutoTimes.link_bytes_per_ms;
  if (known && update_ms == 0 && workload.copy_bytes_per_s > 0)
    update_ms = 1e3 * params_ * kAutoTimes.update_bytes_per_param / workload.copy_bytes_per_s;
  set_to(kScale, kAutoTimes.scale);
  set_to(kPartsScale, kAutoTimes.parts_scale);
  set(kOverhead,
      log_samples(kAutoTimes.overhead_ms, kAutoTimes.least_overhead, kAutoTimes.most_overhead,
                  kAutoTimes.overhead),
      kAutoTimes.overhead_sd);
  set_to(kCurve, kAutoTimes.curve);
  set(kLink,
      known && params_ > 0 ? std::log((link_ms > 0 ? link_ms : send_ms) / sample_ms)
                           : kAutoTimes.link,
      !known        ? kAutoTimes.link_sd_unknown
      : link_ms > 0 ? kAutoTimes.link_sd_of_forecast
                    : kAutoTimes.link_sd_of_guess);
  set(kCall, log_samples(kAutoTimes.call_ms, 0, INFINITY, kAutoTimes.call), kAutoTimes.call_sd);
  set(kHidden, std::log(kAutoTimes.hidden_share), kAutoTimes.hidden_sd);
  set(kPrefetch, std::log(kAutoTimes.prefetch_share), kAutoTimes.prefetch_sd);
  set_to(kGather, kAutoTimes.gather);
  set(kUpdate, known && update_ms > 0 ? std::log(update_ms / sample_ms) : kAutoTimes.update,
      kAutoTimes.update_sd);
  set(kStep,
      log_samples(kAutoTimes.step_ms, kAutoTimes.least_step, kAutoTimes.most_step, kAutoTimes.step),
      kAutoTimes.step_sd);
  set_to(kPressure, kAutoTimes.pressure);
  set_to(kForwardShare, kAutoTimes.forward_share);
  for (int stage = 0; stage < 4; ++stage) {
    set_to(kTraffic + stage, kAutoTimes.traffic);
    set_to(kStage + stage, kAutoTimes.stage);
  }
  // DeepSpeed's stage 3 runs Python code for each module, which nothing hides.
  if (!known) set_to(kStage + 3, kAutoTimes.script_stage3);
  set_to(kTrend, kAutoTimes.trend);
  for (const int parameter : {kOdd, kNot4, kNot8})
    set_to(parameter, kAutoTimes.uneven_size);
  set_to(kScattered, kAutoTimes.scattered);
  set_to(kContention, kAutoTimes.contention);
  set_to(kRecompute, kAutoTimes.recompute);
  set_to(kMove, kAutoTimes.move);
  set_to(kOthers, kAutoTimes.others);
}

// Sets what the forecasts of a place have and those of the cheapest place do not; without times in
// them, a guess.
void AutoTimeModel::SetExtras(double sample_ms) {
  extras_.resize(space_.stages.size());
  if (sample_ms <= 0) {
    for (size_t i = 0; i < space_.stages.size(); ++i)
      extras_[i].updated = NumOffloaded(space_.stages[i]) * kAutoTimes.offload_samples / ranks_;
    return;
  }
  std::map<int, double> least_update_ms;
  for (const StageSpace& place : space_.stages) {
    if (place.forecasts.empty()) continue;
    const double update_ms = place.forecasts.front().update_ms;
    double& least = least_update_ms.try_emplace(place.stage, update_ms).first->second;
    least = std::min(least, update_ms);
  }
  for (size_t i = 0; i < space_.stages.size(); ++i) {
    const StageSpace& place = space_.stages[i];
    if (place.settings.empty() || place.forecasts.empty()) continue;
    const Forecast &first = place.forecasts.front(), &last = place.forecasts.back();
    Extra& extra = extras_[i];
    if (last.compute_ms > 0) extra.computed = std::max(SampleMs(last) / sample_ms - 1, 0.0);
    const double more_samples = last.micro_batch_size * last.accumulation_steps -
                                first.micro_batch_size * first.accumulation_steps;
    if (more_samples > 0)
      extra.moved = std::max(last.update_ms - first.update_ms, 0.0) / more_samples / sample_ms;
    extra.updated = (first.update_ms - least_update_ms[place.stage]) / sample_ms;
  }
}

// Gradients are reduced once per step, or per micro-batch where they are sharded; with overlap
// while the backward pass computes, except for the last bucket.
template <typename T, typename Parameters>
void AutoTimeModel::AddReduction(const AutoConfig& config, const Parameters& p,
                                 Terms<T>& terms) const {
  const T traffic = exp(p(kTraffic + config.stage));
  const double volume = config.stage == 0 || !config.knobs.reduce_scatter ? 2 : 1;
  const double calls = std::max(std::ceil(params_ / config.knobs.reduce_bucket), 1.0);
  const T all =
      traffic * exp(p(kLink)) * volume * (ranks_ - 1) / ranks_ + traffic * exp(p(kCall)) * calls;
  T exposed = all;
  if (config.knobs.overlap) {
    const T hidden = exp(p(kHidden)) * 2.0 / 3.0;
    exposed = all / calls + (1 - 1 / calls) * SoftPositive<T>(all - hidden * terms.work, all);
  }
  terms.reduction = exposed * (config.stage >= 2 ? 1.0 * config.accumulation : 1.0);
  terms.backward += terms.reduction;
}

// Updated parameters are gathered at stages 1 and 2, and all of them before each use at stage 3.
template <typename T, typename Parameters>
void AutoTimeModel::AddGathering(const AutoConfig& config, const Parameters& p,
                                 Terms<T>& terms) const {
  const T traffic = exp(p(kTraffic + config.stage));
  const T send = traffic * exp(p(kLink)) * (ranks_ - 1) / ranks_;
  const T issue = traffic * exp(p(kCall));
  if (config.stage < 3) {
    const double calls = std::max(std::ceil(params_ / config.knobs.allgather_bucket), 1.0);
    terms.gathering = send + calls * issue;
    terms.update += terms.gathering;
    return;
  }
  const T gather = exp(p(kGather));
  const T all = 2.0 * gather * send + 2 * kAutoTimes.num_units * gather * issue;
  const T exposed = SoftPositive<T>(all - exp(p(kPrefetch)) * terms.work, all);
  terms.gathering = exposed * (1.0 * config.accumulation);
  terms.forward += 0.5 * terms.gathering;
  terms.backward += 0.5 * terms.gathering;
}

// The efficiency of computing is 1 / (1 + (overhead / size)^curve).
template <typename T, typename Parameters>
AutoTimeModel::Terms<T> AutoTimeModel::TermsOf(const AutoConfig& config, double memory_share,
                                               const Parameters& p) const {
  Terms<T> terms;
  const double size = config.micro_batch, accumulation = config.accumulation;
  terms.work = size + size * exp(exp(p(kCurve)) * (p(kOverhead) - std::log(size)));
  const double pressure =
      std::clamp((memory_share - kAutoTimes.nearly_full) / kAutoTimes.full_width, 0.0,
                 kAutoTimes.most_pressure);
  T slow = 1 + p(kPressure) * pressure;
  if (slow < kAutoTimes.least_slowdown) slow = kAutoTimes.least_slowdown;
  const T computing = accumulation * terms.work * slow, share = exp(p(kForwardShare)) / 3.0;
  terms.forward = computing * share;
  terms.backward = computing * (1 - share);
  const Extra& extra = extras_[config.place];
  const T move = exp(p(kMove));
  terms.update =
      exp(p(kUpdate)) / (config.stage >= 1 ? ranks_ : 1.0) + exp(p(kStep)) + move * extra.updated;
  terms.backward += exp(p(kRecompute)) * extra.computed * accumulation * terms.work +
                    move * extra.moved * config.samples();
  if (ranks_ > 1) {
    AddReduction(config, p, terms);
    if (config.stage >= 1) AddGathering(config, p, terms);
  }
  return terms;
}

template <typename T, typename Parameters>
T AutoTimeModel::LogAs(const AutoConfig& config, double memory_share, const Parameters& p,
                       Part part) const {
  const Terms<T> terms = TermsOf<T>(config, memory_share, p);
  const Part timed = part == Part::kObjective ? objective_ : part;
  T time = timed == Part::kForward    ? terms.forward
           : timed == Part::kBackward ? terms.backward
           : timed == Part::kUpdate   ? terms.update
                                      : T(terms.forward + terms.backward + terms.update);
  if (time < 1e-12) time = 1e-12;
  if (part != Part::kObjective) return p(kPartsScale) + log(time);
  const auto is_uneven = [&](int64_t factor) {
    return config.micro_batch > factor && config.micro_batch % factor != 0 ? 1.0 : 0.0;
  };
  T sum = log(time) - (per_sample_ ? std::log(config.samples()) : 0.0);
  for (const auto& [parameter, x] : {
           std::pair<int, double>(kScale, 1),
           {kStage + config.stage, 1},
           {kTrend, std::log2(config.micro_batch)},
           {kOdd, is_uneven(2)},
           {kNot4, is_uneven(4)},
           {kNot8, is_uneven(8)},
           {kScattered, ranks_ > 1 && !config.knobs.contiguous},
           {kContention, ranks_ > 1 && config.knobs.overlap},
           {kOthers, config.knobs.effect.log_time},
       })
    if (x != 0) sum += x * p(parameter);
  return sum;
}

double AutoTimeModel::Log(const AutoConfig& config, double memory_share, const Vector& parameters,
                          Part part, Vector* gradient) const {
  if (gradient == nullptr)
    return LogAs<double>(
        config, memory_share, [&](int i) { return parameters[i]; }, part);
  using Differentiable = Eigen::AutoDiffScalar<Vector>;
  const Differentiable log = LogAs<Differentiable>(
      config, memory_share, [&](int i) { return Differentiable(parameters[i], kNum, i); }, part);
  *gradient = log.derivatives();
  return log.value();
}

AutoTimeModel::Shares AutoTimeModel::SharesOf(const AutoConfig& config, const Vector& p) const {
  const Terms<double> terms = TermsOf<double>(config, 0, [&](int i) { return p[i]; });
  const double all = terms.forward + terms.backward + terms.update;
  const double lost = terms.work - config.micro_batch;
  const double overhead = config.accumulation * lost + std::exp(p[kStep]);
  const double update = std::exp(p[kUpdate]) / (config.stage >= 1 ? ranks_ : 1) +
                        std::exp(p[kMove]) * extras_[config.place].updated;
  const double computed = std::exp(p[kRecompute]) * extras_[config.place].computed;
  return {.compute = config.samples() * (1 + computed) / all,
          .communication = (terms.reduction + terms.gathering) / all,
          .update = update / all,
          .overhead = overhead / all};
}

}  // namespace dsat
