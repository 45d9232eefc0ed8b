// The answer of a search: the configuration to train with, and how sure that is.
#pragma once

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

// The measured speed of the pick with another global batch.
struct LargerBatch {
  TrialId trial = 0;
  int64_t train_batch_size = 0;
  double factor = 1;  // The samples per second, as a multiple of the pick's.
};

// How sure it is that the pick is faster than the submitted configuration.
enum class Certainty {
  kProven,    // The interval of the factor is above 1.
  kProbable,  // The expected gain is worth the risk of a loss (Posterior::Utility).
  kNone,      // No other configuration is, or nothing compares with it.
};
std::string ToString(Certainty certainty);

struct Verdict {
  // The trial with the configuration to use: the best other configuration if it is probably faster
  // than the submitted one, by the rounds of the confirmation or, without them, by the measurements
  // of the search and the noise of launches; else the submitted one. It is the best one where that
  // was not measured.
  std::optional<TrialId> pick;
  Certainty certainty = Certainty::kNone;
  // The best other configuration against the submitted one; nullopt if either was not measured. If
  // it has no rounds, its value is what the search has measured, the luckiest of many.
  std::optional<Factor> factor;
  // The speed of the pick (SpeedOf); nullopt if there is no pick.
  std::optional<double> speed;
  // The logarithm of the speed, in the rounds; nullopt if nothing was confirmed.
  std::optional<Center> log_speed;
  int64_t num_rounds = 0;  // The completed rounds; 0 if nothing was confirmed.
  // Configurations that dropped out of the confirmation or the soak, each with the reason.
  std::vector<std::pair<TrialId, std::string>> left_out;
  bool nothing_better = false;  // The pick is the submitted configuration.
  // Confirmed configurations that the rounds cannot tell from the pick; the submitted one, whose
  // factor is stated, is none of them.
  std::vector<TrialId> ties;
  std::vector<Alternative> alternatives;
  // Device memory that the pick leaves free on the fullest rank; nullopt if it is not known.
  std::optional<int64_t> free_bytes;
  std::optional<TrialId> soak;  // The longer run of the pick (ProofOf), if it has run.
  // Why the pick was not confirmed or not soaked as asked for, "" if it was.
  std::string no_confirmation;
  std::string no_soak;
  // The speed of the soak as a part of that of the other launches of the pick, if it is not the
  // same within the noise of launches.
  std::optional<double> soak_speed;
  // Whether launches of the submitted configuration run at two speeds.
  bool two_kinds = false;
  // The mean part of the machine's processor time that other processes used while the launches ran
  // that the answer rests on.
  double other_load = 0;
  LossCheck losses;
  double device_seconds = 0;  // Slots times the time that trials ran.
  // Optimizer steps of the submitted batch size after whose samples the pick has repaid the search,
  // by the lower end of the factor's interval if the gain is proven; nullopt if it never does.
  std::optional<int64_t> repaid_after_steps;
  // The gain by a larger global batch than the one that is kept, if it was measured.
  std::optional<LargerBatch> larger_batch;
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
