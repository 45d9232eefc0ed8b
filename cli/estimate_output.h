// Formats the output of dsat estimate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "profiler/planner.h"

namespace dsat::cli {

// "-" if there are none.
std::string BytesOrDash(int64_t bytes);

// One configuration. `name` is what the user calls it.
std::string EstimateText(const Planner& planner, const std::string& name,
                         const PlannerEstimate& estimate);
// The changes with which a configuration fits.
std::string ChangesText(const std::vector<Change>& changes);
// A row for each variant.
std::string VariantsText(const std::vector<Variant>& variants);

// The model and the cluster, for one line above the rest.
std::string HeadText(const Planner& planner);

Json ToJson(const PlannerEstimate& estimate);
Json ToJson(const std::vector<Variant>& variants);

}  // namespace dsat::cli
