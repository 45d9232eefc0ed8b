// The next micro-batch size from the latest one and how it ended.
#include "methods/bisection.h"

#include <algorithm>

#include "base/error.h"

namespace dsat {
namespace {

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
