// grid: the sizes of each stage, then the variations of knobs.
#include "methods/grid.h"

#include <algorithm>

#include "methods/constraints.h"
#include "methods/lineage.h"

namespace dsat {
namespace {

// A size whose metric is worse than the best one by this factor is clearly worse: the noise of a
// measurement is smaller.
constexpr double kClearlyWorse = 0.9;

}  // namespace

GridMethod::GridMethod(const SearchSpace& space, const SearchOptions& options)
    : space_(space),
      options_(options),
      policy_(PolicyOf(options)),
      smaller_is_better_(SmallerIsBetter(options.metric)) {
  for (int64_t stage = 0; stage < std::ssize(space_.stages); ++stage) {
    const std::optional<Assignment> config =
        NearestAllowed(space_, space_.stages[stage], PlaceAssignment(space_.stages[stage]));
    if (!config) continue;
    walks_.push_back(
        {.stage = stage, .config = *config, .metrics = {}, .best_metric = std::nullopt});
  }
  std::stable_sort(walks_.begin(), walks_.end(), [this](const Walk& a, const Walk& b) {
    return (StageOf(a).approx_max_micro_batch >= 1) > (StageOf(b).approx_max_micro_batch >= 1);
  });
}

std::optional<Proposal> GridMethod::Ask() {
  if (std::optional<Proposal> size = AskSize()) return size;
  const bool walking = std::any_of(walks_.begin(), walks_.end(),
                                   [](const Walk& walk) { return walk.num_running > 0; });
  if (walking) return std::nullopt;
  return AskVariation();
}

void GridMethod::Tell(int64_t tag, const Trial& finished) {
  const Entry& entry = entries_.at(tag);
  if (entry.size == 0) return;
  Walk& walk = walks_[entry.walk];
  --walk.num_running;
  const std::optional<double> metric = finished.state == TrialState::kSucceeded
                                           ? MetricValue(finished, options_.metric)
                                           : std::nullopt;
  if (metric) {
    walk.metrics[entry.size] = *metric;
    if (!walk.best_metric || Better(*metric, *walk.best_metric)) {
      walk.best_metric = metric;
      walk.best_size = entry.size;
    }
  } else if (finished.state == TrialState::kInfeasible || policy_.failure_is_too_large) {
    walk.too_large = std::min(walk.too_large, entry.size);
  }
}

bool GridMethod::HasNext(const Walk& walk) const {
  const int64_t size = walk.next_size;
  if (size > kLargestMicroBatch || size >= walk.too_large) return false;
  if (size <= std::max<int64_t>(StageOf(walk).approx_max_micro_batch, 1)) return true;
  return walk.num_running == 0 && GoesOn(walk);
}

bool GridMethod::GoesOn(const Walk& walk) const {
  const int64_t last = walk.next_size / 2;
  if (walk.best_size == last) return true;
  // The best one may have been lucky.
  const auto found = walk.metrics.find(last);
  if (walk.best_size != last / 2 || found == walk.metrics.end()) return false;
  const double best = *walk.best_metric;
  return !(smaller_is_better_ ? Better(best / kClearlyWorse, found->second)
                              : Better(best * kClearlyWorse, found->second));
}

std::optional<Proposal> GridMethod::AskSize() {
  Walk* chosen = nullptr;
  for (Walk& walk : walks_) {
    if (!HasNext(walk)) continue;
    if (chosen == nullptr || walk.next_size < chosen->next_size) chosen = &walk;
  }
  if (chosen == nullptr) return std::nullopt;
  Proposal proposal{.assignment = chosen->config, .tag = std::ssize(entries_)};
  SetMicroBatch(proposal.assignment, chosen->next_size);
  entries_.push_back({.walk = chosen - walks_.data(), .size = chosen->next_size});
  chosen->next_size *= 2;
  ++chosen->num_running;
  return proposal;
}

std::optional<Proposal> GridMethod::AskVariation() {
  if (!variations_) variations_ = MakeVariations();
  if (next_variation_ == variations_->size()) return std::nullopt;
  entries_.push_back({});
  return Proposal{.assignment = (*variations_)[next_variation_++], .tag = std::ssize(entries_) - 1};
}

std::vector<Assignment> GridMethod::MakeVariations() const {
  std::vector<const Walk*> ranked;
  for (const Walk& walk : walks_) {
    if (walk.best_metric) ranked.push_back(&walk);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [this](const Walk* a, const Walk* b) {
    return Better(*a->best_metric, *b->best_metric);
  });
  std::vector<Assignment> variations;
  for (const Walk* walk : ranked) {
    for (const Knob& knob : StageOf(*walk).knobs) {
      for (const Json& value : knob.values) {
        std::optional<Assignment> variation = walk->config;
        (*variation)[knob.pointer] = value;
        if (!IsAllowed(space_, StageOf(*walk), *variation)) {
          Assignment fixed = PlaceAssignment(StageOf(*walk));
          fixed[knob.pointer] = value;
          variation = NearestAllowed(space_, StageOf(*walk), fixed);
        }
        if (!variation) continue;
        SetMicroBatch(*variation, walk->best_size);
        variations.push_back(*std::move(variation));
      }
    }
  }
  return variations;
}

}  // namespace dsat
