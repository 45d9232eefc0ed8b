// The decisions of auto: which configuration is launched next, when the search ends, and which ones
// are the finalists. They follow from the belief and the record of the search; nothing is learned.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "methods/auto_belief.h"
#include "methods/auto_priors.h"
#include "methods/auto_space.h"

namespace dsat {

// The proposals and measurements of a search so far.
struct AutoRecord {
  struct Running {
    AutoCandidate candidate;
    std::vector<AutoConfig> points = {};     // Measured so far.
    std::optional<AutoCandidate> next = {};  // The point that was asked for last.
  };
  struct Measured {
    AutoConfig config;
    std::optional<AutoCandidate> candidate;  // nullopt outside the space.
    // The first proposal of whose trial this is the best point; -1: none. A confirmation runs the
    // best point of a trial, so that other points are no finalists.
    int64_t tag = -1;
    int64_t launches = 0;
    bool leads = false;    // It is the best point of a trial, proposed or not.
    int64_t failures = 0;  // In a row, of later launches.

    bool HasDroppedOut() const { return failures >= kAutoDecisions.most_failures_of_one; }
  };

  std::map<int64_t, Running> running;  // The proposals that were not told yet, by tag.
  int64_t num_proposals = 0;
  std::set<AutoCandidate> proposed;
  // Candidates whose launch ran out of memory far below the limit, which may be by chance: all of
  // them, and the ones that are to be launched again.
  std::set<AutoCandidate> doubted;
  std::vector<AutoCandidate> to_repeat;
  std::vector<Measured> measured;  // In the order of first measurements.
  int64_t failures_in_a_row = 0;
  int64_t successes = 0;
  double best_throughput = 0;               // In samples per second.
  std::optional<double> submitted_samples;  // The samples of a rank in a step.

  bool IsRunning(const AutoCandidate& candidate) const {
    return std::ranges::any_of(running,
                               [&](const auto& r) { return r.second.candidate == candidate; });
  }
};

// The decisions that a belief and a record lead to. REQUIRES: both outlive the policy unchanged.
class AutoPolicy {
 public:
  // The configurations that decisions look at, besides those that were measured or are running.
  static std::vector<AutoCandidate> Screen(const AutoBelief& belief, const AutoRecord& record);

  // `screened` is the result of Screen.
  AutoPolicy(const AutoBelief& belief, const AutoRecord& record, const SearchOptions& options,
             const std::vector<AutoCandidate>& screened);

  struct Launch {
    AutoCandidate candidate;
    bool repeat = false;  // It was measured before.
  };
  // The launch with the largest expected gain per device-second, at first the one that is predicted
  // to be the best. nullopt once no launch is worth its time.
  std::optional<Launch> NextLaunch() const;
  // The next point of a running trial; nullopt if a new launch is better or nothing is worth it.
  std::optional<AutoCandidate> NextPoint(const AutoCandidate& running) const;
  // A throughput below which a trial cannot win; 0 if unknown.
  double GiveUpBelow() const;

  // Configurations are numbered from here on: first those of record.measured, then those of running
  // trials, then the screened ones.
  int64_t num_configs() const { return std::ssize(configs_); }
  const AutoConfig& config(int64_t i) const { return configs_[i]; }
  const std::optional<AutoCandidate>& candidate(int64_t i) const { return candidates_[i]; }
  double fits(int64_t i) const { return fits_[i]; }  // The probability.
  // The expected logarithm of the objective.
  double mean(int64_t i) const { return view_.mean[i]; }
  // The best of some measured ones, ranked best first, and those that gain the most by being
  // confirmed besides. REQUIRES: there is one.
  std::vector<int64_t> Finalists(const std::vector<int64_t>& ranked) const;
  // Where the factor is above `enough`, the bound may be any number above that.
  OthersBound BoundOthers(int64_t pick, double enough = INFINITY) const;

 private:
  struct Choice {
    Launch launch;
    double gain = 0;  // Expected, as a share of the time of a step.
    double cost_s = 0;

    double Rate() const { return gain / cost_s; }
  };

  bool IsMeasured(int64_t i) const { return i < std::ssize(record_.measured); }
  bool MayAsk(int64_t i) const;
  double RiskOf(int64_t i) const;
  std::optional<Choice> Uncompared() const;
  bool IsUnsettled(int64_t i) const;
  std::optional<Choice> First() const;
  std::optional<Choice> Best() const;
  bool IsWorthIt(const Choice& choice) const;
  bool IsEnough(const Choice& choice) const;
  double GainOf(int64_t i) const;
  double GainOfIncumbent() const;
  double CostOf(int64_t i, double fits, bool new_launch) const {
    return belief_.TrialSeconds(mean(i), config(i), fits, new_launch);
  }
  double TrainingSeconds() const;
  double DifferenceVariance(int64_t i, int64_t j) const {
    return view_.variance[i] + view_.variance[j] - 2 * belief_.Covariance(view_, i, j);
  }
  std::vector<int64_t> Distinct(int64_t pick, const std::vector<int64_t>& points) const;

  const AutoBelief& belief_;
  const AutoRecord& record_;
  const SearchOptions& options_;
  std::vector<AutoConfig> configs_;
  std::vector<std::optional<AutoCandidate>> candidates_;
  std::vector<double> fits_;
  int64_t num_known_ = 0;  // The number of those that trials have run or run.
  AutoRegression::View view_;
  std::optional<int64_t> incumbent_;  // The known one with the best mean; nullopt if there is none.
};

}  // namespace dsat
