// What auto takes over from an earlier search, and when it drops it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "methods/auto.h"

namespace dsat {
namespace {

// The most measurements of an earlier search that count.
constexpr size_t kMostEarlier = 24;
// While a search has at most so many own measurements, they are compared with the earlier search.
constexpr size_t kProbation = 16;
// An earlier search is dropped if what was measured is less probable with it than without it by
// this logarithm of a factor. One of the same model and machine says much, and has to make the
// first two configurations twice as probable.
constexpr double kContradicted = -2;
constexpr double kSupported = 0.7;
constexpr size_t kFirst = 2;

// Whether two searches train the same model on as many ranks.
bool IsSameModel(const Workload& a, const Workload& b) {
  const auto close = [](int64_t x, int64_t y) {
    const auto larger = static_cast<double>(std::max(x, y));
    return static_cast<double>(std::abs(x - y)) <= 0.01 * larger;
  };
  return a.num_params == b.num_params && a.data_parallel == b.data_parallel &&
         a.trainable_num_params == b.trainable_num_params &&
         a.bytes_per_param == b.bytes_per_param &&
         close(a.forward_flops_per_sample, b.forward_flops_per_sample);
}

// log(a / b); 0 if either is unknown.
double LogRatio(int64_t a, int64_t b) {
  return a > 0 && b > 0 ? std::log(static_cast<double>(a) / static_cast<double>(b)) : 0;
}

}  // namespace

// Times count in units of the time of a sample, which grows with the FLOPs of a sample; those of
// communication and of the update grow with the parameters.
AutoRegression::Earlier AutoMethod::TransferFrom(const EarlierSearch& earlier) const {
  using Model = AutoTimeModel;
  const Workload &ours = space_.space().workload, &theirs = earlier.space.workload;
  AutoRegression::Earlier transfer{.model = Model(earlier.space, options_.metric)};
  const bool same_model = IsSameModel(ours, theirs);
  Model::Vector& shift = transfer.shift;
  Model::Vector& sd = transfer.shift_sd;
  // The same machine is not equally fast every day.
  sd[Model::kScale] = sd[Model::kPartsScale] = same_model && earlier.same_machine ? 0.12 : 1;
  transfer.correlation = !same_model ? 0 : earlier.same_machine ? 0.95 : 0.5;
  const double params =
      LogRatio(theirs.num_params * theirs.bytes_per_param, ours.num_params * ours.bytes_per_param);
  const double flops = LogRatio(theirs.forward_flops_per_sample, ours.forward_flops_per_sample);
  const double sample = flops == 0 ? params : flops;
  for (const int parameter : {Model::kLink, Model::kUpdate})
    shift[parameter] = params - sample;
  for (const int parameter : {Model::kCall, Model::kStep})
    shift[parameter] = -sample;
  shift[Model::kOverhead] = -0.5 * sample;
  const double unlike = (same_model ? 0 : 0.3 + 0.2 * std::abs(sample)) +
                        (earlier.same_machine ? 0 : 0.7) +
                        std::abs(LogRatio(theirs.data_parallel, ours.data_parallel));
  for (const int parameter :
       {Model::kLink, Model::kUpdate, Model::kCall, Model::kStep, Model::kOverhead})
    sd[parameter] = unlike;
  for (const int parameter : {Model::kCurve, Model::kHidden, Model::kPrefetch, Model::kGather})
    sd[parameter] = 0.3 * unlike;
  return transfer;
}

// The means of configurations that were measured several times; the best ones and some others.
void AutoMethod::TakeObservations(const EarlierSearch& earlier) {
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
      Trial one = trial;
      one.points = {result};
      const std::optional<AutoConfig> theirs = space.ConfigOf(trial, result.point);
      std::vector<AutoObservation> ours = ObservationsOf(one, nullptr);
      if (!theirs) continue;
      const auto peak = result.measurement.find("peak_bytes");
      memory.Fitted(*theirs, peak == result.measurement.end() ? 0 : peak->second.value);
      if (ours.empty()) continue;
      AutoObservation& o = ours[0];
      o.earlier = true;
      o.earlier_place = theirs->place;
      o.launch = -1 - trial.id;
      o.ended_s = 0;
      o.has_parts = o.has_parts && keeps_parts;
      o.point.memory_share = memory.Share(*theirs);
      const auto known = std::ranges::find_if(
          all, [&](const AutoObservation& other) { return other.point.config == o.point.config; });
      if (known == all.end()) {
        all.push_back(o);
        counts.push_back(1);
        continue;
      }
      double& count = counts[static_cast<size_t>(known - all.begin())];
      known->log_value += (o.log_value - known->log_value) / ++count;
      known->variance *= (count - 1) / count;
    }
  }
  memory_.Inherit(memory, keeps_parts ? 2 : 4);
  std::ranges::stable_sort(all, {}, &AutoObservation::log_value);
  const size_t best = std::min(all.size(), kMostEarlier / 2);
  const size_t others = std::min(all.size() - best, kMostEarlier - best);
  earlier_observations_.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(best));
  for (size_t i = 0; i < others; ++i)
    earlier_observations_.push_back(all[best + i * (all.size() - best) / others]);
}

void AutoMethod::StartFrom(const EarlierSearch& earlier) {
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

// Whether this search's measurements are as probable given the earlier one as they are without it.
// REQUIRES: regression_ was fitted.
void AutoMethod::CheckEarlier() {
  std::vector<AutoObservation> own = OwnObservations();
  if (own.empty() || own.size() > kProbation) return;
  AutoRegression cold(model_);
  cold.Fit(std::move(own));
  const double by_time = regression_.LogEvidenceOfOwn() - cold.LogEvidenceOfOwn();
  const double by_memory = memory_.log_evidence() - cold_memory_->log_evidence();
  const bool is_first = must_be_supported_ && measured_.size() >= kFirst;
  if (is_first) must_be_supported_ = false;
  if (by_time >= (is_first ? kSupported : kContradicted) && by_memory >= kContradicted) return;
  const bool one = observations_.size() == 1;
  warm_start_ +=
      fmt::format("; dropped after {} own measurement{}, which {} not {} it", observations_.size(),
                  one ? "" : "s", one ? "does" : "do", is_first ? "support" : "agree with");
  earlier_observations_.clear();
  memory_ = *cold_memory_;
  cold_memory_.reset();
  regression_ = cold;
}

}  // namespace dsat
