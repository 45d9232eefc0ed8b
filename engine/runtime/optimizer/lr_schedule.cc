// DeepSpeed's learning-rate schedules as functions of the number of updates.
#include "engine/runtime/optimizer/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dsat::engine {
namespace {

int64_t WarmupSteps(const SchedulerConfig& s) {
  return std::max<int64_t>(s.warmup_num_steps, 2);
}

// The share of the way up that the warm-up has gone at `iteration` < its length.
double WarmupShare(const SchedulerConfig& s, int64_t iteration) {
  const auto at = static_cast<double>(iteration), length = static_cast<double>(WarmupSteps(s));
  return s.warmup_linear ? at / length : std::log(at + 1) / std::log(length);
}

// Updates from the end of the warm-up to that of the schedule.
double DecaySteps(const SchedulerConfig& s) {
  return static_cast<double>(std::max<int64_t>(1, s.total_num_steps - WarmupSteps(s)));
}

// WarmupLR and WarmupDecayLR.
double WarmupRate(const SchedulerConfig& s, int64_t iteration) {
  double share = 1;
  if (iteration < WarmupSteps(s)) {
    share = WarmupShare(s, iteration);
  } else if (s.type == "WarmupDecayLR") {
    share = std::max(0.0, static_cast<double>(s.total_num_steps - iteration) / DecaySteps(s));
  }
  return s.warmup_min_lr + share * (s.warmup_max_lr - s.warmup_min_lr);
}

// WarmupCosineLR: a ratio of the optimizer's own rate.
double CosineRatio(const SchedulerConfig& s, int64_t iteration) {
  if (iteration < WarmupSteps(s))
    return s.warmup_min_ratio + WarmupShare(s, iteration) * (1 - s.warmup_min_ratio);
  const int64_t steps = iteration - WarmupSteps(s) + 1;
  const double progress = std::min(1.0, static_cast<double>(steps) / DecaySteps(s));
  const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, s.cos_min_ratio + cosine * (1 - s.cos_min_ratio));
}

double RangeTestRate(const LrRangeTestConfig& c, int64_t iteration) {
  double interval = static_cast<double>(iteration + 1) / static_cast<double>(c.step_size);
  if (c.staircase) interval = std::floor(interval);
  return c.min_lr * (1 + c.step_rate * interval);
}

int64_t CycleSteps(const OneCycleConfig& c) {
  return c.first_step_size + c.second_step_size;
}

// How far up the cycle is, 0 to 1, in stairs if it has any. REQUIRES: iteration < CycleSteps.
double CycleHeight(const OneCycleConfig& c, int64_t iteration) {
  const int64_t at = (iteration + 1) % CycleSteps(c);
  const bool rises = at <= c.first_step_size;
  const int64_t steps = rises ? at : CycleSteps(c) - at;
  const int64_t half = rises ? c.first_step_size : c.second_step_size;
  const int64_t stairs = rises ? c.first_stair_count : c.second_stair_count;
  if (stairs == 0) return static_cast<double>(steps) / static_cast<double>(half);
  const double stair = std::floor(static_cast<double>(steps * stairs) / static_cast<double>(half));
  return stair / static_cast<double>(stairs);
}

// The factor of the decay after the cycle: 1 + rate for every decay_step_size updates.
double DecayFactor(const OneCycleConfig& c, double rate, int64_t iteration) {
  if (c.decay_step_size == 0) return 1;
  const auto steps = static_cast<double>(iteration - CycleSteps(c) + 1);
  return 1 + rate * steps / static_cast<double>(c.decay_step_size);
}

double OneCycleRate(const OneCycleConfig& c, int64_t iteration) {
  if (iteration >= CycleSteps(c)) return c.min_lr / DecayFactor(c, c.decay_lr_rate, iteration);
  return c.min_lr + CycleHeight(c, iteration) * (c.max_lr - c.min_lr);
}

double OneCycleMomentum(const OneCycleConfig& c, int64_t iteration) {
  if (iteration >= CycleSteps(c)) return c.max_mom * DecayFactor(c, c.decay_mom_rate, iteration);
  return c.max_mom - CycleHeight(c, iteration) * (c.max_mom - c.min_mom);
}

// The rate before the schedule's first iteration.
double StartRate(const SchedulerConfig& s) {
  if (s.type == "OneCycle") return s.one_cycle.min_lr;
  if (s.type == "LRRangeTest") return s.range_test.min_lr;
  return s.type == "WarmupCosineLR" ? 0 : s.warmup_min_lr;
}

double RateAt(const OptimizerConfig& optimizer, const SchedulerConfig& s, int64_t iteration) {
  if (s.type == "OneCycle") return OneCycleRate(s.one_cycle, iteration);
  if (s.type == "LRRangeTest") return RangeTestRate(s.range_test, iteration);
  if (s.type == "WarmupCosineLR") return optimizer.lr * CosineRatio(s, iteration);
  return WarmupRate(s, iteration);
}

bool HasBetas(const OptimizerConfig& optimizer) {
  return optimizer.type != "sgd" && optimizer.type != "adagrad";
}

}  // namespace

double LearningRate(const OptimizerConfig& optimizer, const SchedulerConfig& scheduler,
                    int64_t num_updates) {
  if (scheduler.type.empty()) return optimizer.lr;
  if (num_updates > 0) {
    return RateAt(optimizer, scheduler, scheduler.last_batch_iteration + num_updates);
  }
  // A schedule that starts in the middle has no rate before it is stepped.
  return scheduler.last_batch_iteration == -1 ? StartRate(scheduler) : optimizer.lr;
}

OptimizerConfig ScheduledSettings(const OptimizerConfig& optimizer,
                                  const SchedulerConfig& scheduler, int64_t num_updates) {
  OptimizerConfig settings = optimizer;
  settings.lr = LearningRate(optimizer, scheduler, num_updates);
  const OneCycleConfig& cycle = scheduler.one_cycle;
  if (scheduler.type != "OneCycle" || !cycle.cycle_momentum || !HasBetas(optimizer)) {
    return settings;
  }
  if (num_updates == 0 && scheduler.last_batch_iteration != -1) return settings;
  const int64_t iteration = scheduler.last_batch_iteration + num_updates;
  settings.beta1 = num_updates == 0 ? cycle.min_mom : OneCycleMomentum(cycle, iteration);
  settings.beta2 = 0.99;  // DeepSpeed's, whatever the optimizer's own.
  return settings;
}

}  // namespace dsat::engine
