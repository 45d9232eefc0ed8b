// Lineages, which asha, binary and random share. A lineage is one random configuration and the
// micro-batch sizes that are tried with it in sequence. The methods differ in which lineage gets
// the next trial and at which size.
//
// As in Determined's DeepSpeed Autotune (harness/determined/pytorch/dsat), where a lineage is the
// chain of trials that differ only in their micro-batch size.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "methods/method.h"
#include "proto/experiment.h"
#include "proto/search_policy.h"
#include "proto/trial.h"

namespace dsat {

// One micro-batch size, and the range it was chosen from: low <= micro_batch <= high.
struct Step {
  int64_t low = 1;
  int64_t high = 1;
  int64_t micro_batch = 1;
};

// The evidence of a trial about its micro-batch size.
enum class SizeEvidence {
  kPending,   // Still running.
  kFits,      // Measured.
  kTooLarge,  // Infeasible, or failed with SearchPolicy::failure_is_too_large.
  kUnknown,   // Failed or stopped: no evidence. The lineage ends.
};

struct LineageTrial {
  Step step;
  int64_t rung = 0;  // asha: the rung the trial ran in.
  SizeEvidence evidence = SizeEvidence::kPending;
  std::optional<double> metric;  // Set if it fits.
};

struct Lineage {
  int64_t number = 0;  // Counts from 0; the tag of its proposals.
  int64_t place = 0;   // Index into the space's stages.
  int stage = 0;
  Assignment config;  // Everything but the micro-batch size.
  // LineageTable::Ceiling of its place when it was drawn.
  int64_t ceiling = kLargestMicroBatch;
  std::vector<LineageTrial> trials;

  // True if no trial of it is running. At most one runs at a time.
  bool Idle() const { return trials.empty() || trials.back().evidence != SizeEvidence::kPending; }
  // The number of trials that have ended.
  int64_t NumCompleted() const;
  // The rung of the latest trial; 0 before the first.
  int64_t Rung() const { return trials.empty() ? 0 : trials.back().rung; }
  // True if one of its trials was too large.
  bool AnyTooLarge() const;
};

// All lineages of one search. Draws are keyed by (seed, lineage, purpose), so that the draws of a
// lineage do not depend on when they are made.
class LineageTable {
 public:
  LineageTable(SearchSpace space, SearchOptions options);

  // True if every stage that is predicted to fit has a lineage: until then, a new lineage comes
  // before all else. Always true without options.lineages.cover_stages.
  bool CoversStages() const;
  // A new lineage without trials: its stage drawn in proportion to `weight` (REQUIRES: not all 0)
  // from those without a lineage or, once CoversStages, from all; each knob of the stage uniformly
  // from the combinations that space.where allows.
  Lineage& Draw(const std::function<int64_t(const StageSpace&)>& weight);
  // The same with StageWeight.
  Lineage& Draw();

  // Adds a running trial to an idle lineage and returns its proposal. REQUIRES: low <= micro_batch
  // <= high.
  Proposal Propose(Lineage& lineage, const Step& step, int64_t rung = 0);

  // Records how the lineage's running trial ended; `tag` is its proposal's.
  Lineage& Tell(int64_t tag, const Trial& finished);

  // The largest micro-batch size of a place that is not known to be too large: below the smallest
  // that was, unless a larger one has fit with other knobs. The published methods ignore what other
  // lineages have shown.
  int64_t Ceiling(int64_t place) const;

  // The largest micro-batch size of a place that was measured; 0 if none was.
  int64_t LargestFit(int64_t place) const;

  // The best metric among the lineage's trials in rungs up to `max_rung`, nullopt without any.
  std::optional<double> BestMetric(const Lineage& lineage, int64_t max_rung = INT64_MAX) const;
  // True if `a` is strictly better than `b` in the metric that is optimized.
  bool Better(double a, double b) const;

  const StageSpace& StageOf(const Lineage& lineage) const { return space_.stages[lineage.place]; }
  const SearchSpace& space() const { return space_; }
  const SearchOptions& options() const { return options_; }
  const SearchPolicy& policy() const { return policy_; }
  const std::deque<Lineage>& lineages() const { return lineages_; }
  Lineage& at(int64_t number) { return lineages_.at(number); }
  // The number of proposals so far.
  int64_t num_proposals() const { return num_proposals_; }

 private:
  SizeEvidence EvidenceOf(const Trial& finished) const;
  bool IsUncovered(const StageSpace& place) const;

  SearchSpace space_;
  SearchOptions options_;
  SearchPolicy policy_;
  bool smaller_is_better_;
  std::deque<Lineage> lineages_;                    // Stable references.
  std::map<int64_t, int64_t> largest_fit_;          // By place.
  std::map<int64_t, std::set<int64_t>> too_large_;  // By place.
  int64_t num_proposals_ = 0;
};

// The weight of a stage in draws. A stage that cannot hold one sample according to the profile has
// a quarter of the weight of the others; it is not excluded, because the profile may be wrong.
int64_t StageWeight(const StageSpace& stage);

// The keys of a configuration as a trial sets them.
Assignment PlaceAssignment(const StageSpace& place);
void SetMicroBatch(Assignment& assignment, int64_t micro_batch);

// Bisection within a lineage for the largest micro-batch size that fits, shared by asha and binary.
//
// The first step: the middle of 1 and its stage's approximate maximum times
// search_range_factor, but not more than its ceiling.
Step FirstBisectionStep(const LineageTable& table, const Lineage& lineage);

// The step after the lineage's latest trial; nullopt if the search is over because no size remains
// between the largest that fits and the smallest that does not, or because the latest trial gave no
// evidence. If the upper end of the range fits, the next step is twice as large if no size was too
// large, the latest trial was the lineage's best, and the ceiling allows it
// (SearchPolicy::bisect_beyond_range).
// REQUIRES: the lineage is idle and has a trial.
std::optional<Step> NextBisectionStep(const LineageTable& table, const Lineage& lineage);

}  // namespace dsat
