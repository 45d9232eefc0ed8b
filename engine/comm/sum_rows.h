// The sum over ranks that reducing collectives compute.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/tensor.h"

namespace dsat::engine {

// Every one of sums (n) = rows[0] (n) + rows[1] (n) + ..., all of `dtype`, summed in f32 in this
// order and rounded once, to nearest even. A sum may overwrite a row. REQUIRES: at least one row
// and one sum.
void SumRows(std::span<void* const> sums, std::span<const void* const> rows, DType dtype,
             int64_t num_elems);

}  // namespace dsat::engine
