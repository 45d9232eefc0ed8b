// Drawing lineages, and recording what their trials showed.
#include "methods/lineage.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "methods/constraints.h"

namespace dsat {
namespace {

// A lineage that no draw finds allowed is refused when it is proposed.
constexpr int kMostDraws = 1000;

std::optional<Step> Middle(int64_t low, int64_t high) {
  if (low > high) return std::nullopt;
  return Step{.low = low, .high = high, .micro_batch = (low + high) / 2};
}

// Continues beyond the range, because the profile's estimate may have been too low.
std::optional<Step> Beyond(const LineageTable& table, const Lineage& lineage) {
  const LineageTrial& latest = lineage.trials.back();
  const int64_t top = latest.step.micro_batch;
  if (!table.policy().bisect_beyond_range || lineage.AnyTooLarge()) return std::nullopt;
  if (table.Better(*table.BestMetric(lineage), *latest.metric)) return std::nullopt;
  if (2 * top > lineage.ceiling) return std::nullopt;
  return Step{.low = top + 1, .high = 2 * top, .micro_batch = 2 * top};
}

}  // namespace

int64_t Lineage::NumCompleted() const {
  return std::ssize(trials) - (Idle() ? 0 : 1);
}

bool Lineage::AnyTooLarge() const {
  return std::ranges::count(trials, SizeEvidence::kTooLarge, &LineageTrial::evidence) > 0;
}

int64_t StageWeight(const StageSpace& stage) {
  return stage.approx_max_micro_batch >= 1 ? 4 : 1;
}

Assignment PlaceAssignment(const StageSpace& place) {
  Assignment assignment = place.settings;
  assignment[kStageKey] = place.stage;
  return assignment;
}

void SetMicroBatch(Assignment& assignment, int64_t micro_batch) {
  assignment[kMicroBatchKey] = micro_batch;
}

LineageTable::LineageTable(SearchSpace space, SearchOptions options)
    : space_(std::move(space)),
      options_(std::move(options)),
      policy_(PolicyOf(options_)),
      smaller_is_better_(SmallerIsBetter(options_.metric)) {
  DSAT_CHECK(!space_.stages.empty(), "a search space without stages");
}

Lineage& LineageTable::Draw() {
  return Draw(StageWeight);
}

bool LineageTable::IsUncovered(const StageSpace& place) const {
  if (!options_.lineages.cover_stages || place.approx_max_micro_batch < 1) return false;
  return std::ranges::none_of(lineages_,
                              [&](const Lineage& lineage) { return &StageOf(lineage) == &place; });
}

bool LineageTable::CoversStages() const {
  return std::ranges::none_of(space_.stages,
                              [this](const StageSpace& stage) { return IsUncovered(stage); });
}

Lineage& LineageTable::Draw(const std::function<int64_t(const StageSpace&)>& weight_of) {
  const bool covers = CoversStages();
  const auto weight = [&](const StageSpace& stage) -> int64_t {
    if (covers) return weight_of(stage);
    return IsUncovered(stage) ? 1 : 0;
  };
  const int64_t seed = options_.random_seed, number = std::ssize(lineages_);
  int64_t total = 0;
  for (const StageSpace& stage : space_.stages)
    total += weight(stage);
  DSAT_CHECK(total > 0, "every stage has weight 0");
  int64_t ticket = Rng(seed, number, "stage").Below(total);
  auto stage = space_.stages.begin();
  while (ticket >= weight(*stage))
    ticket -= weight(*stage++);

  const int64_t place = stage - space_.stages.begin();
  Lineage lineage{.number = number,
                  .place = place,
                  .stage = stage->stage,
                  .config = PlaceAssignment(*stage),
                  .ceiling = Ceiling(place),
                  .trials = {}};
  for (int draw = 0; draw < kMostDraws; ++draw) {
    for (const Knob& knob : stage->knobs) {
      // The pointer is the purpose, so that a new knob in the space does not change the draws of
      // the others.
      const std::string purpose =
          draw == 0 ? knob.pointer : fmt::format("{}#{}", knob.pointer, draw);
      const uint64_t index = Rng(seed, number, purpose).Below(knob.values.size());
      lineage.config[knob.pointer] = knob.values[index];
    }
    if (IsAllowed(space_, *stage, lineage.config)) break;
  }
  return lineages_.emplace_back(std::move(lineage));
}

Proposal LineageTable::Propose(Lineage& lineage, const Step& step, int64_t rung) {
  DSAT_CHECK(lineage.Idle(), "lineage {} has a trial running", lineage.number);
  DSAT_CHECK(1 <= step.low && step.low <= step.micro_batch && step.micro_batch <= step.high,
             "micro-batch size {} outside [{}, {}]", step.micro_batch, step.low, step.high);
  lineage.trials.push_back({.step = step, .rung = rung, .metric = std::nullopt});
  ++num_proposals_;
  Proposal proposal{.assignment = lineage.config, .tag = lineage.number};
  SetMicroBatch(proposal.assignment, step.micro_batch);
  return proposal;
}

Lineage& LineageTable::Tell(int64_t tag, const Trial& finished) {
  Lineage& lineage = at(tag);
  DSAT_CHECK(!lineage.Idle(), "lineage {} has no trial running", tag);
  LineageTrial& trial = lineage.trials.back();
  trial.evidence = EvidenceOf(finished);
  const int64_t size = trial.step.micro_batch;
  if (trial.evidence == SizeEvidence::kFits) {
    trial.metric = MetricValue(finished, options_.metric);
    largest_fit_[lineage.place] = std::max(largest_fit_[lineage.place], size);
  } else if (trial.evidence == SizeEvidence::kTooLarge) {
    too_large_[lineage.place].insert(size);
  }
  return lineage;
}

int64_t LineageTable::Ceiling(int64_t place) const {
  const auto sizes = too_large_.find(place);
  if (sizes == too_large_.end() || policy_.repeat_equal) return kLargestMicroBatch;
  const auto above = sizes->second.upper_bound(LargestFit(place));
  return above == sizes->second.end() ? kLargestMicroBatch : *above - 1;
}

int64_t LineageTable::LargestFit(int64_t place) const {
  const auto found = largest_fit_.find(place);
  return found == largest_fit_.end() ? 0 : found->second;
}

SizeEvidence LineageTable::EvidenceOf(const Trial& finished) const {
  DSAT_CHECK(finished.state != TrialState::kRunning, "told of trial {} while it runs", finished.id);
  if (finished.state == TrialState::kSucceeded && MetricValue(finished, options_.metric)) {
    return SizeEvidence::kFits;
  }
  if (finished.state == TrialState::kInfeasible || policy_.failure_is_too_large) {
    return SizeEvidence::kTooLarge;
  }
  return SizeEvidence::kUnknown;
}

std::optional<double> LineageTable::BestMetric(const Lineage& lineage, int64_t max_rung) const {
  std::optional<double> best;
  for (const LineageTrial& trial : lineage.trials) {
    if (!trial.metric || trial.rung > max_rung) continue;
    if (!best || Better(*trial.metric, *best)) best = trial.metric;
  }
  return best;
}

bool LineageTable::Better(double a, double b) const {
  return smaller_is_better_ ? a < b : a > b;
}

Step FirstBisectionStep(const LineageTable& table, const Lineage& lineage) {
  const double stretched =
      table.options().lineages.search_range_factor * table.StageOf(lineage).approx_max_micro_batch;
  return *Middle(1, std::clamp<double>(stretched, 1, std::max<int64_t>(1, lineage.ceiling)));
}

std::optional<Step> NextBisectionStep(const LineageTable& table, const Lineage& lineage) {
  DSAT_CHECK(lineage.Idle() && !lineage.trials.empty());
  const LineageTrial& latest = lineage.trials.back();
  const Step& step = latest.step;
  if (latest.evidence == SizeEvidence::kUnknown) return std::nullopt;
  if (latest.evidence == SizeEvidence::kTooLarge) return Middle(step.low, step.micro_batch - 1);
  if (step.micro_batch < step.high) return Middle(step.micro_batch + 1, step.high);
  return Beyond(table, lineage);
}

}  // namespace dsat
