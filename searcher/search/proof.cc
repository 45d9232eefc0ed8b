// The order of the runs that prove the pick.
#include "searcher/search/proof.h"

#include <algorithm>

#include "proto/micro_batch.h"
#include "searcher/search/loss_check.h"
#include "searcher/search/search_state.h"
#include "searcher/search/verdict.h"

namespace dsat {
namespace {

bool ChecksLosses(const SearchState& search) {
  return search.spec.options.check_losses && search.confirmation.has_value();
}

// Whether a reference run of a global batch is missing. A further one would not succeed if one has
// not.
bool LacksReference(const SearchState& search, int64_t train_batch_size) {
  int64_t count = 0;
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kReference || GlobalBatch(trial.ds_config) != train_batch_size)
      continue;
    if (trial.state != TrialState::kSucceeded) return false;
    ++count;
  }
  return count < (SubmittedRepeats(search) ? 1 : 2);  // A band of noise needs two runs.
}

// The steps of a soak that takes at most half as long as the confirmation has.
int64_t StepsInBudget(const SearchState& search, TrialId of) {
  const int64_t asked = search.spec.options.soak_steps;
  double all_s = 0, longest_s = 0;
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kConfirm) continue;
    const double seconds = trial.times.ended_s - trial.times.started_s;
    all_s += seconds;
    longest_s = std::max(longest_s, seconds);
  }
  const auto latency_ms = ValueAtBest(search.trials.at(of), search.spec.options.metric, "latency");
  if (!latency_ms || *latency_ms <= 0 || all_s <= 0) return asked;
  // The longest launch stands for the start of this one.
  const double steps = std::min((all_s / 2 - longest_s) * 1000 / *latency_ms, double(asked));
  return static_cast<int64_t>(steps);
}

int64_t SoakSteps(const SearchState& search, TrialId of) {
  const SearchOptions& options = search.spec.options;
  const int64_t least = options.end_profile_step + 1;
  if (!search.end_reason.empty()) return least;
  return std::max(least, options.soak_in_budget ? StepsInBudget(search, of) : options.soak_steps);
}

}  // namespace

std::optional<Json> WithGlobalBatch(const Json& submitted, int64_t train_batch_size) {
  const int64_t micro_batch = submitted.at("train_micro_batch_size_per_gpu");
  const int64_t accumulation = submitted.at("gradient_accumulation_steps");
  const int64_t replicas = GlobalBatch(submitted) / (micro_batch * accumulation);
  if (replicas < 1 || train_batch_size % replicas != 0) return std::nullopt;
  const int64_t samples = train_batch_size / replicas;
  const int64_t size = LargestDivisor(samples, micro_batch);
  Json config = submitted;
  config["train_batch_size"] = train_batch_size;
  config["train_micro_batch_size_per_gpu"] = size;
  config["gradient_accumulation_steps"] = samples / size;
  return config;
}

std::optional<Trial> NextProof(const SearchState& search) {
  const SearchOptions& options = search.spec.options;
  // A soak that may take as long as the confirmation needs one.
  const bool soaks = options.soak_steps > 0 && search.end_reason.empty() &&
                     (!options.soak_in_budget || search.confirmation.has_value());
  if (!soaks && !ChecksLosses(search)) return std::nullopt;
  const Verdict verdict = VerdictOf(search);
  const std::optional<TrialId> pick = verdict.pick;
  if (!pick || search.SoakOf(*pick)) return std::nullopt;
  // A search whose budget is used up does not prove what it has not confirmed.
  const bool lost = search.confirmation.has_value() && verdict.num_rounds == 0;
  if (lost && !search.end_reason.empty()) return std::nullopt;
  const Json config = search.BestConfigOf(*pick);
  const std::optional<TrialId> submitted = search.submitted;
  const bool compares = ChecksLosses(search) && submitted && pick != submitted &&
                        !LossesOf(search.trials.at(*pick), options.metric).empty() &&
                        !LossesOf(search.trials.at(*submitted), options.metric).empty();
  if (compares && !search.Dropped().contains(*submitted) &&
      GlobalBatch(config) != GlobalBatch(search.BestConfigOf(*submitted)) &&
      LacksReference(search, GlobalBatch(config))) {
    Trial reference = search.RunAgain(TrialKind::kReference, *submitted);
    const std::optional<Json> legal = WithGlobalBatch(reference.ds_config, GlobalBatch(config));
    if (legal) {
      reference.ds_config = *legal;
      return reference;
    }
  }
  if (!soaks && !compares) return std::nullopt;
  Trial soak = search.RunAgain(TrialKind::kSoak, *pick);
  soak.steps = SoakSteps(search, *pick);
  return soak;
}

}  // namespace dsat
