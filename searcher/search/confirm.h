// The confirmation of a search: its best configurations and the submitted one (the arms) are
// measured again in rounds, so that the factor between them does not come from the measurements by
// which they were chosen, and slow drift of the machine affects all of them alike.
//
// After some of the rounds there is a look at the data, which may end the confirmation. The looks
// and the finalists share the 5 % by which intervals may be wrong equally, so that by Bonferroni's
// inequality all intervals of the confirmation are right together in at least 95 % of all cases.
// From the first look on only the best finalist is measured beside the submitted configuration.
//
// Speeds are compared at equal load: they grow with a power of the processors' time that others
// left (TrialTimes::others), which is learned from the differences within rounds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/statistics.h"
#include "proto/trial.h"

namespace dsat {

// How many times as fast one configuration is as another.
struct Factor {
  double value = 1;
  // The 95 % confidence interval; 0 if there are too few rounds for one.
  double low = 0;
  double high = 0;
  double faster = 0.5;  // The probability that the one is faster than the other.
  int64_t rounds = 0;   // The rounds that it is measured in; 0: it is that of the search.
  bool has_interval() const { return high > 0; }
  // The interval excludes that the two are equally fast or that the other is faster.
  bool is_gain() const { return has_interval() && low > 1; }
};

// The belief about the logarithm of a factor: `mean` + `scale` times Student's t.
struct Posterior {
  double mean = 0;
  double scale = 0;
  int64_t dof = 2;
  // The expected gain by the one configuration less the expected loss, which counts so many times
  // as much as a gain: a change has to be more than as likely a loss as a gain.
  static constexpr double kCaution = 10;
  double Gain() const { return StudentGain(mean, scale, dof); }
  double Loss() const { return StudentGain(-mean, scale, dof); }
  double Utility() const { return Gain() - kCaution * Loss(); }
  double Faster() const;  // The probability that the factor is above 1.
};

// The standard deviation of the logarithm of the speed between launches of one configuration, as it
// is known before any is repeated, with the degrees of freedom that it counts for.
struct LaunchNoise {
  // A guess counts only as long as nothing else is known.
  static constexpr double kGuess = 0.04;
  static constexpr int64_t kGuessDof = 2;
  double sd = kGuess;
  int64_t dof = kGuessDof;
  bool is_guess = true;
};

// The speed by which configurations are compared: samples/s if the trial has measured them and a
// larger `metric` is better, else the metric, inverted if smaller is better. nullopt if the trial
// has no such measurement.
std::optional<double> SpeedOf(const Trial& trial, const std::string& metric);

inline constexpr size_t kMostFinalists = 3;
inline constexpr int64_t kFirstLook = 2;  // In rounds.

// After which rounds there are looks if there are `rounds` rounds at most: 2, 3, 4, 6, 9, 13 ...
// and the last one. REQUIRES: rounds >= 1.
std::vector<int64_t> LooksUpTo(int64_t rounds);

struct ConfirmPlan {
  // Trials that have succeeded. Of finalists that are about equally fast the first one is the best.
  std::vector<TrialId> arms;
  std::optional<TrialId> base;  // The submitted configuration, if it is an arm.
  std::vector<int64_t> looks;   // As LooksUpTo.
  LaunchNoise noise = {};
  // The cost of a round of two launches, as a share of the training to come.
  double round_cost = 0;
  int64_t seed = 0;
  std::string metric;
};

// A deterministic function of its plan and what was added.
class Confirmation {
 public:
  // A look decides if the interval of the best finalist over the base excludes 1, or if what a
  // wrong choice is expected to cost is less than what the rounds up to the next look do. Without a
  // base the first look does. A single arm is measured alone; where others drop out, none is.
  explicit Confirmation(ConfirmPlan plan) : plan_(std::move(plan)) {
    for (const TrialId trial : plan_.arms)
      arms_.emplace(trial, Arm());
  }

  // The arm to measure next; nullopt when a look has decided, or the last one. The order of each
  // round is drawn.
  std::optional<TrialId> Next() const;
  // Whether the launch that is next belongs to the round before a look, and is of the best finalist
  // so far.
  bool MayEndWithNext() const;
  // The present round is complete.
  bool IsBetweenRounds() const;
  // The next look, in rounds; the last one after it.
  int64_t NextLook() const;
  // More rounds may follow, whatever they cost. REQUIRES: looks as LooksUpTo.
  void Extend(std::vector<int64_t> looks);

  // Adds the search's measurement of the base: where it is far from the rounds, launches are of two
  // kinds, and a look before six rounds does not decide.
  void AddSearched(const Trial& searched);
  // The present belief about the speed of a finalist, by all of its launches, which decides between
  // finalists. If one has none, the rounds do.
  void AddBelief(TrialId arm, double speed) { arms_.at(arm).belief = speed; }
  // The confirm trial of `arm` has ended. An arm that is infeasible, or fails twice, is left out.
  // `forgives`: one that is infeasible once may have lost its memory to another process.
  void Add(TrialId arm, const Trial& finished, bool forgives = false);
  // An arm that a later run has shown to be no answer.
  void LeaveOut(TrialId arm, const std::string& reason);

  // The arms that were not left out, in the order given.
  std::vector<TrialId> Arms() const;
  // Complete rounds.
  int64_t NumRounds() const;
  // The others, each with the reason.
  std::vector<std::pair<TrialId, std::string>> LeftOut() const;
  // The finalist with the largest utility over the base, or the largest mean speed if there is no
  // base, by the rounds and what is believed; the first one of those that are less than 1 %
  // slower in the mean. nullopt if there is none in Arms() that was measured.
  std::optional<TrialId> BestOther() const;
  // Whether a look has found the launches of the base to be of two kinds.
  bool HasTwoKinds() const { return two_kinds_; }
  // The geometric mean of the speeds of an arm, without disturbed launches, and its logarithm.
  // REQUIRES: the arm has completed a round.
  double MeanSpeed(TrialId arm) const;
  Center LogSpeed(TrialId arm) const;
  // The logarithm of the factor in each round that both have, by the number of the round from 1 on.
  std::map<int64_t, double> LogFactors(TrialId arm, TrialId base) const;
  // `arm` against `base`, by their differences in the rounds that both have. The variance of a
  // launch is estimated from all arms and from what was known before, or from these two where they
  // vary more. nullopt if there is no such round.
  std::optional<Posterior> Believe(TrialId arm, TrialId base) const;
  // The same as a factor with an interval that is widened for the number of arms that could have
  // been picked and for the looks. REQUIRES: there is such a round.
  Factor Compare(TrialId arm, TrialId base) const;

 private:
  struct Arm {
    std::optional<double> belief;
    int64_t num_failed = 0;
    std::string left_out;
  };
  struct Launch {
    double log_speed = 0;
    double log_left = 0;  // As LogLeft(Trial).
  };
  // The power of the share that others left with which speed grows.
  struct Power {
    double mean = 0;
    double variance = 0;
    double squares = 0;    // Its distance from the prior adds them to those of the contrasts.
    double mean_left = 0;  // The mean of log_left over all launches.
  };
  struct Round {
    std::vector<TrialId> order;
    std::map<TrialId, Launch> launches;
  };
  struct Variance {
    double of_launch = 0;
    int64_t dof = 0;
  };
  bool IsLeft(TrialId trial) const { return arms_.at(trial).left_out.empty(); }
  bool HasBase() const { return plan_.base && IsLeft(*plan_.base); }
  bool HasDecided() const;
  bool IsLook() const;
  bool IsFarFromSearched() const;
  std::optional<TrialId> Waiting() const;
  Round Upcoming() const;
  double BelievedShift(TrialId arm) const;
  Variance VarianceOf(TrialId arm, TrialId base) const;
  std::vector<std::vector<Launch>> Contrasts(const std::vector<TrialId>& order) const;
  void LearnPower();
  // The speed as it would be at the mean load.
  double AtMeanLoad(const Launch& launch) const {
    return launch.log_speed - power_.mean * (launch.log_left - power_.mean_left);
  }
  static Launch MeanOf(const std::vector<Launch>& launches);
  std::vector<Launch> LaunchesOf(TrialId arm) const;
  std::vector<double> AtEqualLoad(const std::vector<Launch>& contrasts) const;
  std::vector<double> LogSpeeds(TrialId arm) const;

  ConfirmPlan plan_;
  std::map<TrialId, Arm> arms_;
  std::vector<Round> rounds_;
  Power power_;
  std::optional<Launch> searched_;  // The base's in the search.
  bool two_kinds_ = false;
};

}  // namespace dsat
