// Converts numbers from one dtype to another, without a backend.
#ifndef DSAT_ENGINE_FILES_CONVERT_H_
#define DSAT_ENGINE_FILES_CONVERT_H_

#include "engine/core/tensor.h"

namespace dsat::engine {

// dst = src, rounded to nearest, ties to even. Numbers that are too large become infinite; NaN
// stays NaN. REQUIRES: equal numbers of elements, and no overlap.
void ConvertElems(const Tensor& dst, const Tensor& src);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_FILES_CONVERT_H_
