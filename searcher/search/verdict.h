// The answer of a search: the configuration to train with, and how sure that is.
#ifndef DSAT_SEARCHER_SEARCH_VERDICT_H_
#define DSAT_SEARCHER_SEARCH_VERDICT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/statistics.h"
#include "methods/method.h"
#include "proto/trial.h"
#include "searcher/search/confirm.h"
#include "searcher/search/loss_check.h"
#include "searcher/search/search_state.h"

namespace dsat {

// Another configuration to consider.
struct Alternative {
  std::string name;  // "fastest", "safest" (the most free memory within 3 % of the pick's speed)
  TrialId trial = 0;
  // As of the pick. None is offered whose losses differ.
  LossCheck losses = {};
};

struct Verdict {
  // The trial with the configuration to use: the submitted one if nothing is certainly faster. With
  // a confirmation its rounds decide, and where they cannot tell configurations apart, the method
  // and what changes least do; without one, the best measurement does.
  std::optional<TrialId> pick;
  // The best other configuration against the submitted one; nullopt if either was not measured. It
  // has no interval unless it was confirmed.
  std::optional<Factor> factor;
  // The speed of the pick (SpeedOf); nullopt if there is no pick.
  std::optional<double> speed;
  // The logarithm of the speed, in the rounds; nullopt if nothing was confirmed.
  std::optional<Center> log_speed;
  int64_t num_rounds = 0;  // The completed rounds; 0 if nothing was confirmed.
  // Configurations that dropped out of the confirmation or the soak, each with the reason.
  std::vector<std::pair<TrialId, std::string>> left_out;
  bool nothing_better = false;  // The interval of the factor contains 1.
  // Confirmed configurations that the rounds cannot tell from the pick.
  std::vector<TrialId> ties;
  std::vector<Alternative> alternatives;
  // Device memory that the pick leaves free on the fullest rank; nullopt if it is not known.
  std::optional<int64_t> free_bytes;
  // The last runs of the pick (searcher/proof.h).
  std::optional<TrialId> soak;  // nullopt: it has not run.
  // Why it ran no more steps than the comparison of losses needs, "" if it did or was not asked to.
  std::string no_soak;
  LossCheck losses;
  double device_seconds = 0;  // Slots times the time that trials ran.
  // Optimizer steps of the submitted batch size after whose samples the pick has repaid the search;
  // nullopt if it never does.
  std::optional<int64_t> repaid_after_steps;
  // How much faster others may be than the pick; nullopt if FailedLikeAllOthers().
  std::optional<OthersBound> others;
  std::string bound;
  std::optional<MachineDrift> drift;
  std::string warm_start;
};

// A function of what the search was told. While the search runs, it is the best answer so far.
Verdict VerdictOf(const SearchState& search);

// The last failed trial of the method if none of its trials has succeeded: then nothing says how
// fast other configurations are. nullptr if one has succeeded or none has failed.
const Trial* FailedLikeAllOthers(const SearchState& search);

Json ToJson(const Factor& factor);
Json ToJson(const Verdict& verdict);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SEARCH_VERDICT_H_
