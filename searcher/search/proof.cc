// The order of the runs that prove the pick.
#include "searcher/search/proof.h"

#include <algorithm>

#include "proto/experiment.h"
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

// The steps of a soak in the time that is left, and by default in half of the time that the
// confirmation has taken.
int64_t SoakSteps(const SearchState& search, TrialId of) {
  const SearchOptions& options = search.spec.options;
  double all_s = 0, longest_s = 0;
  for (const auto& [id, trial] : search.trials) {
    if (trial.kind != TrialKind::kConfirm) continue;
    all_s += trial.times.seconds();
    longest_s = std::max(longest_s, trial.times.seconds());
  }
  double seconds = search.SecondsLeft();
  if (options.soak_in_budget && all_s > 0) seconds = std::min(seconds, all_s / 2);
  // The longest launch stands for the start of this one.
  longest_s = std::max(longest_s, search.LaunchSeconds(of));
  const double latency_ms =
      ValueAtBest(search.trials.at(of), options.metric, "latency").value_or(0);
  double steps = static_cast<double>(options.soak_steps);
  if (latency_ms > 0) steps = std::min(steps, (seconds - longest_s) * 1000 / latency_ms);
  const int64_t least = options.end_profile_step + 1;  // As the comparison of losses needs.
  return std::max(least, static_cast<int64_t>(std::max(steps, 0.0)));
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
  const Verdict verdict = VerdictOf(search);
  return verdict.pick ? ProofOf(search, *verdict.pick) : std::nullopt;
}

std::optional<Trial> ProofOf(const SearchState& search, TrialId pick) {
  const SearchOptions& options = search.spec.options;
  // A soak that may take as long as the confirmation needs one.
  const bool soaks =
      options.soak_steps > 0 && (!options.soak_in_budget || search.confirmation.has_value());
  if (search.SoakOf(pick) || search.LaunchSeconds(pick) > search.SecondsLeft()) return std::nullopt;
  const Json config = search.BestConfigOf(pick);
  const std::optional<TrialId> submitted = search.submitted;
  const bool compares = ChecksLosses(search) && submitted && pick != submitted &&
                        !LossesOf(search.trials.at(pick), options.metric).empty() &&
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
  Trial soak = search.RunAgain(TrialKind::kSoak, pick);
  soak.steps = SoakSteps(search, pick);
  return soak;
}

}  // namespace dsat
