// The belief of auto: how long each configuration takes, whether it runs and fits, and what a
// launch costs. It learns from trials and decides nothing (methods/auto_policy.h does).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "methods/auto_failures.h"
#include "methods/auto_memory.h"
#include "methods/auto_regression.h"
#include "methods/auto_space.h"
#include "methods/auto_time_model.h"
#include "methods/method.h"
#include "methods/warm_start.h"

namespace dsat {

class AutoBelief {
 public:
  // Starts from the earlier search in options.auto_method.prior, if there is one.
  AutoBelief(const SearchSpace& space, const SearchOptions& options);

  const AutoSpace& space() const { return space_; }

  // Learns from the end of a trial, which must not be told twice. `config` is what it ran, nullopt
  // if that is outside the space, and `tag` the number of LearnRunning, or -1. Returns what was
  // measured.
  std::vector<AutoObservation> Learn(const Trial& finished, const std::optional<AutoConfig>& config,
                                     int64_t tag);
  // Learns from all points so far of a running trial, and returns their configurations.
  std::vector<AutoConfig> LearnRunning(int64_t tag, const Trial& running, const AutoConfig& config);
  // Forgets the points of a running trial.
  void Forget(int64_t tag) {
    if (running_.erase(tag) > 0) HasLearned();
  }

  // The expected logarithm of the objective, by itself and with variances; smaller is better.
  // `pending` are configurations whose measurements will come.
  double LogOf(const AutoPoint& point) const { return regression().LogOf(point); }
  AutoRegression::View Look(const std::vector<AutoConfig>& configs,
                            const std::vector<AutoConfig>& pending) const;
  double Covariance(const AutoRegression::View& view, int64_t a, int64_t b) const {
    return regression().Covariance(view, a, b);
  }
  // The variance of a further measurement of a configuration, in a new launch.
  double NoiseVariance(const AutoConfig& config) const {
    return regression().NoiseVariance(config);
  }
  std::optional<MachineDrift> Drift() const { return regression().Drift(); }

  // The probability that a configuration runs and fits.
  double ProbabilityFits(const AutoConfig& config) const {
    return memory_.ProbabilityFits(config) * failures_.ProbabilityRuns(config);
  }
  const AutoMemory& memory() const { return memory_; }
  const AutoFailures& failures() const { return failures_; }
  // Whether a trial that ran out of memory may have done so because of something else.
  bool IsDoubtful(const Trial& misfit, const AutoConfig& config) const;

  // How long a step takes whose objective has this logarithm; nullopt until one was measured.
  std::optional<double> StepSeconds(double log_value, const AutoConfig& config) const;
  // How long a trial is expected to take, in a new launch or within one, if it runs with this
  // probability.
  double TrialSeconds(double log_value, const AutoConfig& config, double fits,
                      bool new_launch) const;
  // How long all trials took that have ended.
  double spent_s() const { return spent_s_; }

  // One line on what bounds the speed of a configuration, and what would help.
  std::string BoundOf(const AutoConfig& config) const;
  // One line on what became of the earlier search; "" without one.
  const std::string& warm_start() const { return warm_start_; }
  int64_t num_observations() const { return std::ssize(observations_); }

 private:
  AutoPoint PointOf(const AutoConfig& config) const { return {config, memory_.Share(config)}; }
  std::optional<AutoObservation> ObservationOf(const Trial& trial, const PointResult& result,
                                               const std::optional<AutoConfig>& config) const;
  void LearnPoint(const PointResult& result, const AutoObservation& observation);
  void LearnCosts(const Trial& finished);
  std::vector<AutoObservation> OwnObservations() const;
  // Something was told. The regression is fitted when it is asked next: a replay asks it nothing.
  void HasLearned();
  const AutoRegression& regression() const;

  // The earlier search (auto_transfer.cc).
  void StartFrom(const EarlierSearch& earlier);
  AutoRegression::Earlier TransferFrom(const EarlierSearch& earlier) const;
  void TakeObservations(const EarlierSearch& earlier);
  bool ContradictsEarlier();

  SearchOptions options_;
  AutoSpace space_;
  AutoTimeModel model_;
  AutoMemory memory_;
  AutoFailures failures_;
  mutable AutoRegression regression_;
  mutable bool is_fitted_ = false;

  std::vector<AutoObservation> observations_;                // From trials that have ended.
  std::map<int64_t, std::vector<AutoObservation>> running_;  // By tag.
  std::optional<double> log_step_s_;  // log(seconds of a step) less its predicted logarithm.
  double launch_s_;                   // The mean of `num_launch_s_` launches.
  double stretch_ = 1;                // The same of their times of measuring, over the least ones.
  double num_launch_s_ = 0;
  double spent_s_ = 0;

  std::vector<AutoObservation> earlier_observations_;
  std::optional<AutoMemory> cold_memory_;  // Without the earlier search, as long as that counts.
  bool must_be_supported_ = false;         // The earlier search has to prove itself.
  std::string warm_start_;
};

}  // namespace dsat
