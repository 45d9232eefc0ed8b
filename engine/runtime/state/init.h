// The initial values of parameters: a function of (seed, name, element), whatever slice a rank
// holds.
#ifndef DSAT_ENGINE_RUNTIME_STATE_INIT_H_
#define DSAT_ENGINE_RUNTIME_STATE_INIT_H_

#include <cstdint>

#include "engine/backend/kernels.h"
#include "engine/core/tensor.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// Writes elements [begin, begin + dst.num_elems) of the parameter to `dst`, rounded to its dtype.
void InitParam(Kernels& kernels, const ParamSpec& spec, uint64_t seed, int64_t begin, Tensor dst);

// The standard normal quantile (Acklam's rational approximation, relative error 1.2e-9), for p in
// (0, 1). One table-free draw per element: Box-Muller would dominate the start-up time.
double NormalQuantile(double p);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_STATE_INIT_H_
