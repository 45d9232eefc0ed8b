// auto: predicts the memory and the time of every configuration, measures those that promise the
// most, and stops when the best one is known well enough (docs/methods.md).
#ifndef DSAT_METHODS_AUTO_H_
#define DSAT_METHODS_AUTO_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

class AutoMethod : public Method {
 public:
  AutoMethod(const SearchSpace& space, const SearchOptions& options);

  const AutoSpace& space() const { return space_; }

  // The configuration with the largest expected gain per device-second, at first the one that is
  // predicted to be the best. nullopt once no further measurement is worth its time.
  std::optional<Proposal> Ask() override;
  void Tell(int64_t tag, const Trial& finished) override;
  void Observe(const Trial& finished) override;
  std::optional<Point> NextPoint(int64_t tag, const Trial& running) override;
  Conclusion Conclude() const override;
  std::optional<double> ProbabilityNearBest(const Trial& pick) const override;
  std::string BoundOf(const Trial& pick) const override;

  // A configuration that would be proposed if everything that promises less were left out.
  struct Expected {
    Assignment assignment;
    double fits = 0;  // The probability.
    // Relative to the first one's: how long a step takes, per sample if the metric is a throughput.
    double factor = 1;
    double step_ms = 0;  // 0 if no time was measured.
  };
  // The `count` configurations with the best expected metric of those that probably fit.
  std::vector<Expected> BestExpected(size_t count) const;

 private:
  // A proposal.
  struct Asked {
    AutoCandidate candidate;
    bool running = true;
    std::vector<AutoObservation> points = {};  // While it runs.
    std::optional<AutoCandidate> next = {};    // The point that was asked for last.
  };
  static constexpr int64_t kMostFailuresOfOne = 2;
  // What was measured of a configuration, in the order of first measurements.
  struct Measured {
    AutoPoint point;
    std::optional<AutoCandidate> candidate;
    // The first proposal of whose trial this is the best point; -1: none. A confirmation runs the
    // best point of a trial, so that other points are no finalists.
    int64_t tag = -1;
    int64_t launches = 0;
    bool leads = false;    // It is the best point of a trial, proposed or not.
    int64_t failures = 0;  // In a row, of later launches.

    bool HasDroppedOut() const { return failures >= kMostFailuresOfOne; }
  };
  // The points that one decision looks at: first those of trials that have ended, then those of
  // running ones, then others.
  struct Outlook {
    AutoRegression::View view;
    std::vector<std::optional<AutoCandidate>> candidates;
    std::vector<double> fits;  // Probabilities.
    size_t num_measured = 0;   // Of trials that have ended.
    size_t num_known = 0;      // And of running ones, measured or not.
    // The known point with the best mean; nullopt if there is none.
    std::optional<Eigen::Index> incumbent;
  };
  struct Choice {
    AutoCandidate candidate;
    bool repeat = false;
    double gain = 0;  // Expected, as a share of the time of a step.
    double cost_s = 0;
  };

  // The prior (auto_transfer.cc).
  void StartFrom(const EarlierSearch& earlier);
  AutoRegression::Earlier TransferFrom(const EarlierSearch& earlier) const;
  void TakeObservations(const EarlierSearch& earlier);
  void CheckEarlier();

  void Learn(const Trial& finished, const AutoConfig* proposed, int64_t tag);
  void LearnPoint(const AutoObservation& observation, bool leads, int64_t tag);
  void LearnFailure(const AutoConfig& config, bool is_final);
  std::vector<AutoObservation> ObservationsOf(const Trial& trial, const AutoConfig* proposed) const;
  void LearnCosts(const Trial& finished);
  std::vector<AutoObservation> OwnObservations() const;
  void Refresh();
  std::vector<AutoCandidate> Screen() const;
  std::vector<AutoCandidate> LeastNeeds() const;
  Outlook LookAround() const;
  std::vector<AutoPoint> Pending() const;
  AutoPoint PointOf(const AutoConfig& config) const;
  // The probability that a configuration runs and fits.
  double ProbabilityFits(const AutoConfig& config) const;

  double StepSeconds(double log_value, const AutoConfig& config) const;
  // How long the training to come takes, in seconds: a larger batch needs fewer steps.
  double TrainingSeconds(const Outlook& outlook) const;
  double CostOf(double log_value, const AutoConfig& config, double fits, bool new_launch) const;
  double GainOf(const Outlook& outlook, Eigen::Index i) const;
  // Of the difference of the logarithms of two points.
  double DifferenceVariance(const Outlook& outlook, Eigen::Index i, Eigen::Index j) const;
  double GainOfIncumbent(const Outlook& outlook) const;
  bool MayAsk(const Outlook& outlook, Eigen::Index i) const;
  std::optional<Choice> First(const Outlook& outlook) const;
  std::optional<Choice> Best(const Outlook& outlook) const;
  std::vector<Eigen::Index> Distinct(const Outlook& outlook, Eigen::Index pick,
                                     const std::vector<Eigen::Index>& points) const;
  // The index in measured_ of a trial's best point.
  std::optional<size_t> MeasuredOf(const Trial& trial) const;
  double ProbabilityNearBest(const Outlook& outlook, Eigen::Index pick) const;
  bool IsEnough(const Outlook& outlook, const Choice& choice) const;
  std::vector<size_t> Finalists(const Outlook& outlook, const std::vector<size_t>& ranked) const;
  double GiveUpBelow(const Outlook& outlook) const;
  std::string BoundOf(const AutoConfig& config) const;

  SearchOptions options_;
  AutoSpace space_;
  AutoTimeModel model_;
  AutoMemory memory_;
  AutoFailures failures_;
  AutoRegression regression_;

  // What an earlier search says; the belief about memory without it as long as it counts.
  std::vector<AutoObservation> earlier_observations_;
  std::optional<AutoMemory> cold_memory_;
  bool must_be_supported_ = false;
  std::string warm_start_;

  std::vector<Asked> asked_;  // By tag.
  std::vector<AutoObservation> observations_;
  std::vector<double> throughputs_;  // Of observations_; 0 if unknown.
  std::vector<Measured> measured_;
  std::map<AutoCandidate, int64_t> times_asked_;
  std::set<TrialId> learned_;
  int64_t failures_in_a_row_ = 0;
  int64_t successes_ = 0;
  // Measured costs.
  double launch_s_ = 20;
  double num_launch_s_ = 0;
  double spent_s_ = 0;                // By all trials that have ended.
  std::optional<double> submitted_samples_;  // Of a step and a rank.
  std::optional<double> log_step_s_;  // log(seconds of a step) less its predicted logarithm.

  bool fresh_ = false;  // regression_ and screened_ know everything that was told.
  std::vector<AutoCandidate> screened_;
};

}  // namespace dsat

#endif  // DSAT_METHODS_AUTO_H_
