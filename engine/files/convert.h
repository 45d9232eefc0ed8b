// Numbers from one storage type to another, without a backend.
#ifndef DSAT_ENGINE_FILES_CONVERT_H_
#define DSAT_ENGINE_FILES_CONVERT_H_

#include "engine/core/tensor.h"

namespace dsat::engine {

// dst = src, rounded to nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
// REQUIRES: as many elements; they do not overlap.
void ConvertElems(const Tensor& dst, const Tensor& src);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_FILES_CONVERT_H_
