// Predictions for a search's configurations before any of them runs.
#pragma once

#include <cstddef>
#include <vector>

#include "base/json.h"
#include "profiler/predictor.h"
#include "proto/trial.h"
#include "searcher/search/search_state.h"

namespace dsat {

struct EstimatedConfig {
  Assignment assignment;
  Json ds_config;      // Resolved.
  Estimate predicted;  // Its bytes are exact or by formulas; its step_ms may be 0.
  double step_ms = 0;  // By the prediction, else by the time model; 0 if neither knows.
  double factor = 1;   // By the time model: how long a sample takes, relative to the best.
};

struct Outlook {
  // The legal sizes of each stage of the space, ascending.
  std::vector<std::vector<int64_t>> sizes;
  // The configurations of each stage of the space, as auto counts them.
  std::vector<double> num_configs;
  double num_candidates = 0;          // The candidates that auto lists, of all stages.
  std::vector<EstimatedConfig> best;  // Best first; those that do not fit are left out.
};

// Applies the models of the method auto to the space of a search whose profile is known, whichever
// method the search has. No more than AutoSpace::kMostCandidates configurations are listed. Throws
// what MakePredictor throws. REQUIRES: search.space.
Outlook LookAhead(const SearchState& search, size_t num_best);

}  // namespace dsat
