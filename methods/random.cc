// random: draws sizes from ranges that follow from the results of the stage.
#include "methods/random.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace dsat {

std::optional<Proposal> RandomMethod::Ask() {
  if (EarlyStopped()) return std::nullopt;
  if (!queue_.empty() && table_.CoversStages()) {
    Lineage& lineage = table_.at(queue_.front());
    queue_.pop_front();
    // Other trials may have ended since it was queued.
    if (!ShouldStop(lineage)) return table_.Propose(lineage, NextStep(lineage));
  }
  Lineage& fresh = table_.Draw([this](const StageSpace& stage) { return Weight(stage); });
  return table_.Propose(fresh, FirstStep(table_.StageOf(fresh)));
}

void RandomMethod::Tell(int64_t tag, const Trial& finished) {
  const Lineage& lineage = table_.Tell(tag, finished);
  const LineageTrial& trial = lineage.trials.back();
  StageRecord& record = records_[lineage.place];
  if (trial.metric && (!record.best_metric || table_.Better(*trial.metric, *record.best_metric))) {
    record.best_metric = trial.metric;
    record.best = trial.step;
  }
  CountTowardsEarlyStop(finished, trial.metric);
  if (!ShouldStop(lineage)) queue_.push_back(lineage.number);
}

void RandomMethod::Observe(const Trial& finished) {
  if (finished.kind != TrialKind::kSubmitted && finished.kind != TrialKind::kSearch) return;
  const bool succeeded = finished.state == TrialState::kSucceeded;
  CountTowardsEarlyStop(finished,
                        succeeded ? MetricValue(finished, table_.options().metric) : std::nullopt);
}

bool RandomMethod::ShouldStop(const Lineage& lineage) const {
  const SearchOptions& options = table_.options();
  const LineageTrial& latest = lineage.trials.back();
  if (latest.evidence == SizeEvidence::kUnknown) return true;
  if (lineage.NumCompleted() >= options.random.trials_per_random_config) return true;
  if (latest.evidence == SizeEvidence::kTooLarge && latest.step.micro_batch <= latest.step.low) {
    return true;
  }
  if (latest.step.micro_batch >= kLargestMicroBatch) return true;
  if (table_.policy().prune_stages && lineage.stage == 3 && StageOneOrTwoSucceeded()) return true;
  return lineage.AnyTooLarge() && table_.LargestFit(lineage.place) >= latest.step.high;
}

int64_t RandomMethod::Weight(const StageSpace& stage) const {
  if (table_.policy().prune_stages) {
    if (!StageOneOrTwoSucceeded()) return 1;
    const bool pruned_to = stage.stage == 1 || stage.stage == 2;
    return pruned_to && RecordOf(stage).best_metric ? 1 : 0;
  }
  // Stage 3 communicates the most and is less likely to be the best once a lower stage fits.
  if (stage.stage == 3 && StageOneOrTwoSucceeded()) return 1;
  return StageWeight(stage);
}

bool RandomMethod::StageOneOrTwoSucceeded() const {
  return std::ranges::any_of(table_.space().stages, [this](const StageSpace& place) {
    return (place.stage == 1 || place.stage == 2) && RecordOf(place).best_metric;
  });
}

const RandomMethod::StageRecord& RandomMethod::RecordOf(const StageSpace& place) const {
  static const StageRecord kNothing;
  const auto found = records_.find(&place - table_.space().stages.data());
  return found == records_.end() ? kNothing : found->second;
}

Step RandomMethod::DrawStep(int64_t low, int64_t high) const {
  low = std::clamp<int64_t>(low, 1, kLargestMicroBatch);
  high = std::clamp(high, low, kLargestMicroBatch);
  Rng rng(table_.options().random_seed, table_.num_proposals(), "micro_batch");
  return {.low = low, .high = high, .micro_batch = low + rng.Binomial(high - low, 0.5)};
}

Step RandomMethod::FirstStep(const StageSpace& stage) const {
  const StageRecord& record = RecordOf(stage);
  const int64_t best = record.best.micro_batch, place = &stage - table_.space().stages.data();
  const int64_t largest_fit = table_.LargestFit(place);
  if (table_.policy().draw_above_best) {
    if (!record.best_metric) return DrawStep(1, stage.approx_max_micro_batch);
    const int64_t low = best + 1;
    return DrawStep(low, std::max({largest_fit, record.best.high, 2 * low}));
  }
  // A range around the best size, where differences between knobs matter, and below the smallest
  // size known not to fit.
  const int64_t limit = table_.Ceiling(place);
  if (!record.best_metric) return DrawStep(1, std::min(stage.approx_max_micro_batch, limit));
  return DrawStep(best / 2, std::min(std::max(largest_fit, 2 * best), limit));
}

Step RandomMethod::NextStep(const Lineage& lineage) const {
  const LineageTrial& latest = lineage.trials.back();
  if (latest.evidence == SizeEvidence::kTooLarge) {
    return DrawStep(latest.step.low, latest.step.micro_batch - 1);
  }
  const int64_t low = latest.step.micro_batch + 1;
  return DrawStep(low, low > latest.step.high ? 2 * latest.step.high : latest.step.high);
}

void RandomMethod::CountTowardsEarlyStop(const Trial& finished,
                                         const std::optional<double>& metric) {
  const bool new_best = metric && (!best_metric_ || table_.Better(*metric, *best_metric_));
  if (new_best) best_metric_ = metric;
  // A negative id means that the configuration was refused before it ran.
  if (finished.id < 0 || !counted_.insert(finished.id).second) return;
  if (new_best) {
    trials_since_best_ = 0;
  } else if (best_metric_) {
    ++trials_since_best_;
  }
}

bool RandomMethod::EarlyStopped() const {
  const std::optional<int64_t>& limit = table_.options().random.early_stopping;
  return limit && trials_since_best_ >= *limit;
}

}  // namespace dsat
