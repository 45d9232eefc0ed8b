// The confirmation of a search: its best configurations and the submitted one (the arms) are
// measured again in alternation, so that the factor between them does not come from the
// measurements by which they were chosen, and slow drift of the machine affects all of them alike.
//
// A confirmation that has decided nothing after its rounds is extended by as many, and again: it
// has several looks at the data. The looks share the 5 % by which intervals may be wrong (an alpha
// spending function: Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials"):
// the first look has half of it and each further one an equal part of the rest. By Bonferroni's
// inequality all intervals of the confirmation are right together in at least 95 % of all cases, so
// that the one at which it stops is, however that was chosen.
#ifndef DSAT_SEARCHER_SEARCH_CONFIRM_H_
#define DSAT_SEARCHER_SEARCH_CONFIRM_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/statistics.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// How many times as fast one configuration is as another, with a 95 % confidence interval. The
// interval is empty if there are too few rounds for one.
struct Factor {
  double value = 1;
  double low = 0;
  double high = 0;
  bool has_interval() const { return high > 0; }
  // The interval excludes that the two are equally fast or that the other is faster.
  bool is_gain() const { return has_interval() && low > 1; }
  // The interval says little about the size of a gain besides its lower end.
  bool is_vague() const { return has_interval() && high > 1.5 * low; }
};

// An interval that reaches this factor leaves room for a gain that is worth another look.
inline constexpr double kWorthMore = 1.05;

// The speed by which configurations are compared: samples/s if the trial has measured them and a
// larger `metric` is better, else the metric, inverted if smaller is better. nullopt if the trial
// has no such measurement.
std::optional<double> SpeedOf(const Trial& trial, const std::string& metric);

inline constexpr size_t kMostFinalists = 3;

// The finalists of a search whose method names none, fastest first: of trials that have succeeded,
// those whose measurement is at most a tenth slower than the best, and one other than the submitted
// one in any case; kMostFinalists at most.
std::vector<TrialId> FastestTrials(const std::vector<const Trial*>& trials,
                                   std::optional<TrialId> submitted, const std::string& metric);

// How many looks a confirmation of these arms has at the most: options.confirm_looks, or twice as
// many if a look is expected to take less than ten seconds. Short launches often vary most, and
// further rounds of them cost little.
int64_t NumLooks(const std::map<TrialId, Trial>& trials, const std::vector<TrialId>& arms,
                 const SearchOptions& options);
// The part of --max-time and --max-device-hours that is kept for the first rounds.
inline constexpr double kConfirmsPart = 0.5;
// How many of these arms, two at the least, are confirmed after a limit has ended the search: as
// many as fit into kConfirmsPart of each limit if launches take as long as the arms' own have.
size_t NumArmsInLimits(const std::map<TrialId, Trial>& trials, const std::vector<TrialId>& arms,
                       const ExperimentSpec& spec);
// A script that starts slowly makes each round costly: no extension begins after a confirmation
// that took longer than the other trials, and than a minute, or than the training to come (its
// run_steps).
bool ConfirmsTooLong(const std::map<TrialId, Trial>& trials, const SearchOptions& options);

// A deterministic function of its arms and what was added.
class Confirmation {
 public:
  // `arms` are trials that have succeeded. There is a look after every `rounds` rounds, `looks` at
  // the most. A look decides if the interval of the best other arm over `base` excludes 1 and its
  // ends differ by a factor of less than 1.5, or if it does not reach kWorthMore. Without a base
  // the first look does. A single arm is measured alone; where others drop out, none is. REQUIRES:
  // rounds >= 1, looks >= 1.
  Confirmation(std::vector<TrialId> arms, std::optional<TrialId> base, int64_t rounds,
               int64_t looks, std::string metric);

  // The arm to measure next; nullopt when a look has decided, or the last one. Rounds go up and
  // down the arms: A B C, C B A, A B C.
  std::optional<TrialId> Next() const;
  // A look has just decided nothing, and further rounds follow.
  bool GoesOn() const;
  // Whether DoNotExtend would change anything.
  bool MayExtend() const;
  // No rounds come after those of the first look; a later look is cut short.
  void DoNotExtend() { may_extend_ = false; }
  // Further looks may follow, unless the last one has decided.
  void AllowExtension() { may_extend_ = true; }
  // Adds the search's measurement of `arm`. It may be the luckiest of many measurements, so that it
  // says nothing of the mean. But few rounds may agree by chance: the interval of fewer than six is
  // at least as wide as it would be with this one.
  void AddSearched(TrialId arm, const Trial& searched);
  // The confirm trial of `arm` has ended. An arm that is infeasible, or fails twice, is left out.
  void Add(TrialId arm, const Trial& finished);

  // An arm that a later run has shown to be no answer.
  void LeaveOut(TrialId arm, const std::string& reason);

  // The arms that were not left out, in the order given.
  std::vector<TrialId> Arms() const;
  // Rounds that all of these have completed.
  int64_t NumRounds() const;
  // The others, each with the reason.
  std::vector<std::pair<TrialId, std::string>> LeftOut() const;
  // The arm with the largest mean speed besides the base, of those that are certainly faster than
  // it if there are any; nullopt if there is none in Arms(). REQUIRES: NumRounds() > 0.
  std::optional<TrialId> BestOther() const;
  // The geometric mean of the speeds of an arm, without disturbed launches, and its logarithm.
  // REQUIRES: the arm is in Arms(), and NumRounds() > 0.
  double MeanSpeed(TrialId arm) const;
  Center LogSpeed(TrialId arm) const;
  // `arm` against `base`, both in Arms(), by their differences in each round (CenterOf). The
  // variance of a difference is estimated from all pairs of arms, or from these two where they vary
  // more than that; the interval is widened for the number of arms that could have been picked
  // (Bonferroni) and for the looks. REQUIRES: NumRounds() > 0.
  Factor Compare(TrialId arm, TrialId base) const;

 private:
  struct Arm {
    TrialId trial = 0;
    std::vector<double> log_speeds;  // By round.
    std::optional<double> searched;  // The logarithm of the speed in the search.
    int64_t num_failed = 0;
    std::string left_out;
  };
  const Arm& Of(TrialId trial) const;
  std::vector<double> Complete(const Arm& arm) const;
  std::vector<double> Differences(const Arm& arm, const Arm& base, bool with_searched) const;
  std::optional<double> HalfWidth(TrialId arm, TrialId base, bool with_searched) const;
  bool HasBase() const;
  bool HasDecided() const;
  double ErrorOfLook() const;

  std::vector<Arm> arms_;
  std::optional<TrialId> base_;
  int64_t rounds_;
  int64_t looks_;
  bool may_extend_ = true;
  std::string metric_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SEARCH_CONFIRM_H_
