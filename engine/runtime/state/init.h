// The initial values of parameters: a function of (seed, name, element), whatever slice a rank
// holds.
#pragma once

#include <cstdint>
#include <span>

#include "base/num_cores.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// Elements that are started at a time: their scratch memory, 1 MiB, is not counted.
inline constexpr int64_t kStartElems = int64_t{1} << 18;

// Writes elements [begin, begin + out.size()) of the parameter to `out`; the same for any number of
// threads.
void StartValues(const ParamSpec& spec, uint64_t seed, int64_t begin, std::span<float> out,
                 int64_t num_threads = NumCores());

// The standard normal quantile (Acklam's rational approximation, relative error 1.2e-9), for p in
// (0, 1). One table-free draw per element: Box-Muller would dominate the start-up time.
double NormalQuantile(double p);

}  // namespace dsat::engine
