// A search that knows a simulated machine's laws: what no other search can be expected to exceed.
#pragma once

#include "bench/search_report.h"
#include "bench/search_surfaces.h"

namespace dsat {

// Knows the time and memory of every configuration but for the roughness, whose deviations it
// knows, as it knows the noise of each launch. What it measures is the configuration with the
// largest knowledge gradient (Frazier, Powell and Dayanik 2009), `launches` times. Its pick has the
// least expected time. Launches have no outliers, drift or tails.
RunResult RunInformedSearch(const SimulatedSurface& surface, const ExperimentSpec& spec,
                            const SearchSpace& space, int64_t launches, uint64_t seed);

}  // namespace dsat
