// The belief takes over an earlier search, and drops it again.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "methods/auto_belief.h"
#include "methods/auto_priors.h"

namespace dsat {
namespace {

// Whether two searches train the same model on as many ranks.
bool IsSameModel(const Workload& a, const Workload& b) {
  const auto close = [](int64_t x, int64_t y) {
    return std::abs(x - y) <= kAutoTransfer.flops_tolerance * std::max(x, y);
  };
  return a.num_params == b.num_params && a.data_parallel == b.data_parallel &&
         a.trainable_num_params == b.trainable_num_params &&
         a.bytes_per_param == b.bytes_per_param &&
         close(a.forward_flops_per_sample, b.forward_flops_per_sample);
}

// log(a / b); 0 if either is unknown.
double LogRatio(int64_t a, int64_t b) {
  return a > 0 && b > 0 ? std::log(1.0 * a / b) : 0;
}

}  // namespace

// Times count in units of the time of a sample, which grows with the FLOPs of a sample; those of
// communication and of the update grow with the parameters.
AutoRegression::Earlier AutoBelief::TransferFrom(const EarlierSearch& earlier) const {
  using Model = AutoTimeModel;
  const Workload &ours = space_.space().workload, &theirs = earlier.space.workload;
  AutoRegression::Earlier transfer{.model = Model(earlier.space, options_.metric)};
  const bool same_model = IsSameModel(ours, theirs);
  Model::Vector& shift = transfer.shift;
  Model::Vector& sd = transfer.shift_sd;
  // The same machine is not equally fast every day.
  sd[Model::kScale] = sd[Model::kPartsScale] = same_model && earlier.same_machine
                                                   ? kAutoTransfer.same_speed_sd
                                                   : kAutoTransfer.other_speed_sd;
  transfer.correlation = !same_model            ? 0
                         : earlier.same_machine ? kAutoTransfer.same_correlation
                                                : kAutoTransfer.other_correlation;
  const double params =
      LogRatio(theirs.num_params * theirs.bytes_per_param, ours.num_params * ours.bytes_per_param);
  const double flops = LogRatio(theirs.forward_flops_per_sample, ours.forward_flops_per_sample);
  const double sample = flops == 0 ? params : flops;
  for (const int parameter : {Model::kLink, Model::kUpdate})
    shift[parameter] = params - sample;
  for (const int parameter : {Model::kCall, Model::kStep})
    shift[parameter] = -sample;
  shift[Model::kOverhead] = -0.5 * sample;
  const double unlike =
      (same_model ? 0
                  : kAutoTransfer.other_model_sd + kAutoTransfer.per_size_sd * std::abs(sample)) +
      (earlier.same_machine ? 0 : kAutoTransfer.other_machine_sd) +
      std::abs(LogRatio(theirs.data_parallel, ours.data_parallel));
  for (const int parameter :
       {Model::kLink, Model::kUpdate, Model::kCall, Model::kStep, Model::kOverhead})
    sd[parameter] = unlike;
  for (const int parameter : {Model::kCurve, Model::kHidden, Model::kPrefetch, Model::kGather})
    sd[parameter] = kAutoTransfer.robust * unlike;
  return transfer;
}

// The means of configurations that were measured several times; the best ones and some others.
void AutoBelief::TakeObservations(const EarlierSearch& earlier) {
  const AutoSpace space(earlier.space, options_);
  AutoMemory memory(earlier.space);
  const bool keeps_parts =
      earlier.same_machine && IsSameModel(space_.space().workload, earlier.space.workload);
  std::vector<AutoObservation> all;
  std::vector<double> counts;
  for (const Trial& trial : earlier.trials) {
    if (trial.state == TrialState::kInfeasible) {
      if (const auto config = space.ConfigOf(trial, ConfigPoint(trial)))
        memory.DidNotFit(*config, trial.reason);
      continue;
    }
    LearnCosts(trial);
    if (trial.kind == TrialKind::kProfile) continue;
    for (const PointResult& result : trial.points) {
      const std::optional<AutoConfig> theirs = space.ConfigOf(trial, result.point);
      if (!theirs) continue;
      const auto peak = result.measurement.find("peak_bytes");
      memory.Fitted(*theirs, peak == result.measurement.end() ? 0 : peak->second.value);
      std::optional<AutoObservation> o =
          ObservationOf(trial, result, space_.ConfigOf(trial, result.point));
      if (!o) continue;
      o->earlier = true;
      o->earlier_place = theirs->place;
      o->launch = -1 - trial.id;
      o->ended_s = 0;
      o->has_parts = o->has_parts && keeps_parts;
      o->point.memory_share = memory.Share(*theirs);
      const auto known = std::ranges::find_if(
          all, [&](const AutoObservation& other) { return other.point.config == o->point.config; });
      if (known == all.end()) {
        all.push_back(*o);
        counts.push_back(1);
        continue;
      }
      double& count = counts[known - all.begin()];
      known->log_value += (o->log_value - known->log_value) / ++count;
      known->variance *= (count - 1) / count;
    }
  }
  memory_.Inherit(memory, keeps_parts ? kAutoTransfer.same_widen : kAutoTransfer.other_widen);
  std::ranges::stable_sort(all, {}, &AutoObservation::log_value);
  const size_t best = std::min(all.size(), kAutoTransfer.most_observations / 2);
  const size_t others = std::min(all.size() - best, kAutoTransfer.most_observations - best);
  earlier_observations_.assign(all.begin(), all.begin() + best);
  for (size_t i = 0; i < others; ++i)
    earlier_observations_.push_back(all[best + i * (all.size() - best) / others]);
}

void AutoBelief::StartFrom(const EarlierSearch& earlier) {
  cold_memory_ = memory_;
  TakeObservations(earlier);
  num_launch_s_ = std::min(num_launch_s_, 1.0);
  regression_.StartFrom(TransferFrom(earlier));
  const bool same_model = IsSameModel(space_.space().workload, earlier.space.workload);
  must_be_supported_ = same_model && earlier.same_machine;
  const size_t num = earlier_observations_.size();
  warm_start_ = fmt::format("from experiment {} ({}, {}), {}", earlier.experiment,
                            same_model ? "the same model" : "another model",
                            earlier.same_machine ? "the same machine" : "another machine",
                            num == 0   ? "what fits its memory"
                            : num == 1 ? "1 measurement"
                                       : fmt::format("{} measurements", num));
}

// Whether this search's measurements are less probable given the earlier one than without it.
bool AutoBelief::ContradictsEarlier() {
  std::vector<AutoObservation> own = OwnObservations();
  if (own.empty() || std::ssize(own) > kAutoTransfer.probation) return false;
  AutoRegression cold(model_);
  cold.Fit(std::move(own));
  const double by_time = regression().LogEvidenceOfOwn() - cold.LogEvidenceOfOwn();
  const double by_memory = memory_.log_evidence() - cold_memory_->log_evidence();
  // The profile is no measured configuration.
  std::vector<AutoConfig> measured;
  for (const AutoObservation& o : observations_) {
    if (o.other_variance == 0 && std::ranges::find(measured, o.point.config) == measured.end())
      measured.push_back(o.point.config);
  }
  const bool is_first = must_be_supported_ && std::ssize(measured) >= kAutoTransfer.first;
  if (is_first) must_be_supported_ = false;
  if (by_time >= (is_first ? kAutoTransfer.supported : kAutoTransfer.contradicted) &&
      by_memory >= kAutoTransfer.contradicted)
    return false;
  const bool one = num_observations() == 1;
  warm_start_ +=
      fmt::format("; dropped after {} own measurement{}, which {} not {} it", num_observations(),
                  one ? "" : "s", one ? "does" : "do", is_first ? "support" : "agree with");
  return true;
}

}  // namespace dsat
