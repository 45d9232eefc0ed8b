// The terms of a step, their derivatives, and what the machine's speeds say of them beforehand.
#include "methods/auto_time_model.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "methods/auto_priors.h"

namespace dsat {
namespace {

// The passes of a step whose forecast has times, per sample; pipeline stages are `idle` for so many
// micro-batches besides.
double SampleMs(const Forecast& forecast, double idle) {
  return forecast.compute_ms / (forecast.micro_batch_size * (forecast.accumulation_steps + idle));
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

// The larger of x and 0, smoothed over `width`, and its derivative.
struct Soft {
  double value;
  double slope;
};
Soft SoftPositive(double x, double width) {
  const double root = std::sqrt(x * x + width * width + 1e-18);
  return {0.5 * (x + root), 0.5 * (1 + x / root)};
}

}  // namespace

// Times of one optimizer step in samples, with their derivatives.
struct AutoTimeModel::Terms {
  double work = 0, by_overhead = 0, by_curve = 0;  // A micro-batch's, and its derivatives.
  double forward = 0, backward = 0, update = 0;
  Vector d_forward = Vector::Zero(), d_backward = Vector::Zero(), d_update = Vector::Zero();
  double reduction = 0, gathering = 0, computing = 0;  // Parts of the above.
};

AutoTimeModel::AutoTimeModel(const SearchSpace& space, const std::string& metric)
    : space_(space),
      objective_(metric == "forward"    ? Part::kForward
                 : metric == "backward" ? Part::kBackward
                                        : Part::kObjective),
      per_sample_(!SmallerIsBetter(metric)),
      ranks_(std::max<int64_t>(space.workload.data_parallel, 1)),
      idle_(std::max<int64_t>(space.workload.pipeline_stages, 1) - 1),
      params_(std::max<int64_t>(space.workload.num_params, 0)) {
  SetPrior();
}

void AutoTimeModel::SetPrior() {
  const Workload& workload = space_.workload;
  const auto set = [&](int parameter, const AutoPriors::Normal& prior) {
    prior_mean_[parameter] = prior.mean;
    prior_sd_[parameter] = prior.sd;
  };
  // The time of a sample, by what the engine predicts or by the speed of the device.
  double sample_ms = 0, fixed_ms = 0, link_ms = 0, update_ms = 0;
  for (const StageSpace& stage : space_.stages) {
    for (const Forecast& forecast : stage.forecasts) {
      if (forecast.compute_ms <= 0) continue;
      const double this_ms = SampleMs(forecast, idle_);
      // A place that computes or moves more than others says nothing of these.
      if (!stage.settings.empty() && sample_ms > 0 && this_ms > 0.999 * sample_ms) continue;
      sample_ms = this_ms;
      const Forecast& first = stage.forecasts.front();
      fixed_ms = std::max(SampleMs(first, idle_) - this_ms, 0.0) * first.micro_batch_size;
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
  set(kScale, kAutoTimes.scale);
  set(kPartsScale, kAutoTimes.parts_scale);
  set(kOverhead, {log_samples(kAutoTimes.overhead_ms + fixed_ms, kAutoTimes.least_overhead,
                              kAutoTimes.most_overhead, kAutoTimes.overhead),
                  kAutoTimes.overhead_sd});
  set(kCurve, kAutoTimes.curve);
  set(kLink, {known && params_ > 0 ? std::log((link_ms > 0 ? link_ms : send_ms) / sample_ms)
                                   : kAutoTimes.link,
              !known        ? kAutoTimes.link_sd_unknown
              : link_ms > 0 ? kAutoTimes.link_sd_of_forecast
                            : kAutoTimes.link_sd_of_guess});
  set(kCall, {log_samples(kAutoTimes.call_ms, 0, INFINITY, kAutoTimes.call), kAutoTimes.call_sd});
  set(kHidden, {std::log(kAutoTimes.hidden_share), kAutoTimes.hidden_sd});
  set(kPrefetch, {std::log(kAutoTimes.prefetch_share), kAutoTimes.prefetch_sd});
  set(kGather, kAutoTimes.gather);
  set(kUpdate, {known && update_ms > 0 ? std::log(update_ms / sample_ms) : kAutoTimes.update,
                kAutoTimes.update_sd});
  set(kStep, {log_samples(kAutoTimes.step_ms, kAutoTimes.least_step, kAutoTimes.most_step,
                          kAutoTimes.step),
              kAutoTimes.step_sd});
  set(kPressure, kAutoTimes.pressure);
  set(kForwardShare, kAutoTimes.forward_share);
  for (int stage = 0; stage < 4; ++stage) {
    set(kTraffic + stage, kAutoTimes.traffic);
    set(kStage + stage, kAutoTimes.stage);
  }
  // DeepSpeed's stage 3 runs Python code for each module, which nothing hides.
  if (!space_.exact) set(kStage + 3, kAutoTimes.script_stage3);
  set(kTrend, kAutoTimes.trend);
  for (const int parameter : {kOdd, kNot4, kNot8})
    set(parameter, kAutoTimes.uneven_size);
  set(kScattered, kAutoTimes.scattered);
  set(kContention, kAutoTimes.contention);
  set(kRecompute, kAutoTimes.recompute);
  set(kMove, kAutoTimes.move);
  set(kOthers, kAutoTimes.others);
}

// Sets what the forecasts of a place have and those of the cheapest place do not; without times in
// them, a guess.
void AutoTimeModel::SetExtras(double sample_ms) {
  extras_.resize(space_.stages.size());
  if (sample_ms <= 0) {
    for (size_t i = 0; i < space_.stages.size(); ++i) {
      const Assignment& settings = space_.stages[i].settings;
      const auto checkpoints = settings.find("/dsat/trainer/gradient_checkpointing");
      extras_[i].updated = NumOffloaded(space_.stages[i]) * kAutoTimes.offload_samples / ranks_;
      if (checkpoints != settings.end() && checkpoints->second == true)
        extras_[i].computed = kAutoTimes.recomputed;
    }
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
    if (last.compute_ms > 0) extra.computed = std::max(SampleMs(last, idle_) / sample_ms - 1, 0.0);
    const double more_samples = last.micro_batch_size * last.accumulation_steps -
                                first.micro_batch_size * first.accumulation_steps;
    if (more_samples > 0)
      extra.moved = std::max(last.update_ms - first.update_ms, 0.0) / more_samples / sample_ms;
    extra.updated = (first.update_ms - least_update_ms[place.stage]) / sample_ms;
  }
}

const AutoTimeModel::Vector& AutoTimeModel::FactorsOf(const Vector& p) const {
  if (p == last_parameters_) return last_factors_;
  for (int i = 0; i < kNum; ++i)
    last_factors_[i] = std::exp(p[i]);
  last_parameters_ = p;
  return last_factors_;
}

// Gradients are reduced once per step, or per micro-batch where they are sharded; with overlap
// while the backward pass computes, except for the last bucket.
void AutoTimeModel::AddReduction(const AutoConfig& config, const Vector& f, Terms& terms) const {
  const double traffic = f[kTraffic + config.stage];
  const double volume = config.stage == 0 || !config.knobs.reduce_scatter ? 2 : 1;
  const double calls = std::max(std::ceil(params_ / config.knobs.reduce_bucket), 1.0);
  const double sent = traffic * f[kLink] * volume * (ranks_ - 1) / ranks_;
  const double issued = traffic * f[kCall] * calls;
  const double all = sent + issued;
  const double times = config.stage >= 2 ? config.accumulation : 1;
  double exposed = all, slope = 1;
  if (config.knobs.overlap) {
    const double hidden = f[kHidden] * 2 / 3;
    const Soft soft = SoftPositive(all - hidden * terms.work, kAutoTimes.softness * all);
    const double others = 1 - 1 / calls;
    exposed = all / calls + others * soft.value;
    slope = 1 / calls + others * soft.slope;
    const double weight = times * others * soft.slope * hidden;
    terms.d_backward[kHidden] -= weight * terms.work;
    terms.d_backward[kOverhead] -= weight * terms.by_overhead;
    terms.d_backward[kCurve] -= weight * terms.by_curve;
  }
  terms.reduction = times * exposed;
  terms.backward += times * exposed;
  terms.d_backward[kLink] += times * slope * sent;
  terms.d_backward[kCall] += times * slope * issued;
  terms.d_backward[kTraffic + config.stage] += times * slope * all;
}

// Updated parameters are gathered at stages 1 and 2, and all of them before each use at stage 3.
void AutoTimeModel::AddGathering(const AutoConfig& config, const Vector& f, Terms& terms) const {
  const double traffic = f[kTraffic + config.stage];
  const double send = traffic * f[kLink] * (ranks_ - 1) / ranks_;
  const double issue = traffic * f[kCall];
  if (config.stage < 3) {
    const double calls = std::max(std::ceil(params_ / config.knobs.allgather_bucket), 1.0);
    terms.gathering = send + calls * issue;
    terms.update += terms.gathering;
    terms.d_update[kLink] += send;
    terms.d_update[kCall] += calls * issue;
    terms.d_update[kTraffic + config.stage] += terms.gathering;
    return;
  }
  const double sent = 2 * f[kGather] * send;
  const double issued = 2 * kAutoTimes.num_units * f[kGather] * issue;
  const double hidden = f[kPrefetch];
  const double all = sent + issued;
  const Soft soft = SoftPositive(all - hidden * terms.work, kAutoTimes.softness * all);
  const double half = 0.5 * config.accumulation;
  terms.gathering = config.accumulation * soft.value;
  for (const bool forward : {true, false}) {
    (forward ? terms.forward : terms.backward) += half * soft.value;
    Vector& d = forward ? terms.d_forward : terms.d_backward;
    d[kLink] += half * soft.slope * sent;
    d[kCall] += half * soft.slope * issued;
    d[kGather] += half * soft.slope * all;
    d[kTraffic + 3] += half * soft.slope * all;
    d[kPrefetch] -= half * soft.slope * hidden * terms.work;
    d[kOverhead] -= half * soft.slope * hidden * terms.by_overhead;
    d[kCurve] -= half * soft.slope * hidden * terms.by_curve;
  }
}

void AutoTimeModel::AddExtra(const AutoConfig& config, const Vector& f, Terms& terms) const {
  const Extra& extra = extras_[config.place];
  const double computed = f[kRecompute] * extra.computed * (config.accumulation + idle_);
  const double moved = f[kMove] * extra.moved * config.samples();
  terms.computing += computed * terms.work;
  terms.backward += computed * terms.work + moved;
  terms.d_backward[kRecompute] += computed * terms.work;
  terms.d_backward[kOverhead] += computed * terms.by_overhead;
  terms.d_backward[kCurve] += computed * terms.by_curve;
  terms.d_backward[kMove] += moved;
  terms.update += f[kMove] * extra.updated;
  terms.d_update[kMove] += f[kMove] * extra.updated;
}

AutoTimeModel::Terms AutoTimeModel::TermsOf(const AutoConfig& config, double memory_share,
                                            const Vector& p) const {
  Terms terms;
  const Vector& f = FactorsOf(p);
  // Efficiency is 1 / (1 + (overhead / size)^curve).
  const double micro_batch = config.micro_batch, curve = f[kCurve];
  const double log_ratio = p[kOverhead] - std::log(micro_batch);
  const double lost = micro_batch * std::exp(curve * log_ratio);
  terms.work = micro_batch + lost;
  terms.by_overhead = curve * lost;
  terms.by_curve = curve * log_ratio * lost;
  const double pressure =
      std::clamp((memory_share - kAutoTimes.nearly_full) / kAutoTimes.full_width, 0.0,
                 kAutoTimes.most_pressure);
  const double slow = std::max(1 + p[kPressure] * pressure, kAutoTimes.least_slowdown);
  const double passes = config.accumulation + idle_;
  const double size = passes * terms.work;
  const double forward_share = f[kForwardShare] / 3;
  terms.computing = size * slow;
  terms.forward = terms.computing * forward_share;
  terms.backward = terms.computing * (1 - forward_share);
  for (const bool forward : {true, false}) {
    Vector& d = forward ? terms.d_forward : terms.d_backward;
    const double share = forward ? forward_share : 1 - forward_share;
    d[kOverhead] = share * passes * terms.by_overhead * slow;
    d[kCurve] = share * passes * terms.by_curve * slow;
    d[kPressure] = share * size * pressure;
    d[kForwardShare] = (forward ? 1 : -1) * forward_share * terms.computing;
  }
  const double update = f[kUpdate] / (config.stage >= 1 ? ranks_ : 1);
  terms.update = update + f[kStep];
  terms.d_update[kUpdate] = update;
  terms.d_update[kStep] = f[kStep];
  AddExtra(config, f, terms);
  if (ranks_ > 1) {
    AddReduction(config, f, terms);
    if (config.stage >= 1) AddGathering(config, f, terms);
  }
  return terms;
}

double AutoTimeModel::Log(const AutoConfig& config, double memory_share, const Vector& p, Part part,
                          Vector* gradient) const {
  const Terms terms = TermsOf(config, memory_share, p);
  const Part what = part == Part::kObjective ? objective_ : part;
  const bool whole = what == Part::kObjective;
  double time = 0;
  Vector d = Vector::Zero();
  const auto add = [&](Part which, double value, const Vector& derivative) {
    if (!whole && what != which) return;
    time += value;
    if (gradient != nullptr) d += derivative;
  };
  add(Part::kForward, terms.forward, terms.d_forward);
  add(Part::kBackward, terms.backward, terms.d_backward);
  add(Part::kUpdate, terms.update, terms.d_update);
  time = std::max(time, 1e-12);
  if (gradient != nullptr) d /= time;
  if (part != Part::kObjective) {
    d[kPartsScale] = 1;
    if (gradient != nullptr) *gradient = d;
    return p[kPartsScale] + std::log(time);
  }
  const int64_t size = config.micro_batch;
  d[kScale] = d[kStage + config.stage] = 1;
  d[kTrend] = std::log2(config.micro_batch);
  d[kOdd] = size > 2 && size % 2 != 0 ? 1 : 0;
  d[kNot4] = size > 4 && size % 4 != 0 ? 1 : 0;
  d[kNot8] = size > 8 && size % 8 != 0 ? 1 : 0;
  d[kScattered] = ranks_ > 1 && !config.knobs.contiguous ? 1 : 0;
  d[kContention] = ranks_ > 1 && config.knobs.overlap ? 1 : 0;
  d[kOthers] = config.knobs.effect.log_time;
  double log = std::log(time) - (per_sample_ ? std::log(config.samples()) : 0);
  for (const int parameter :
       {int{kScale}, kStage + config.stage, int{kTrend}, int{kOdd}, int{kNot4}, int{kNot8},
        int{kScattered}, int{kContention}, int{kOthers}})
    log += p[parameter] * d[parameter];
  if (gradient != nullptr) *gradient = d;
  return log;
}

AutoTimeModel::Shares AutoTimeModel::SharesOf(const AutoConfig& config, const Vector& p) const {
  const Terms terms = TermsOf(config, 0, p);
  const double all = terms.forward + terms.backward + terms.update;
  const double overhead =
      (config.accumulation + idle_) * terms.work - config.samples() + std::exp(p[kStep]);
  const double update = std::exp(p[kUpdate]) / (config.stage >= 1 ? ranks_ : 1) +
                        std::exp(p[kMove]) * extras_[config.place].updated;
  const double computed = std::exp(p[kRecompute]) * extras_[config.place].computed;
  return {.compute = config.samples() * (1 + computed) / all,
          .communication = (terms.reduction + terms.gathering) / all,
          .update = update / all,
          .overhead = overhead / all};
}

}  // namespace dsat
