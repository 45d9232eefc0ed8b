// Measures how fast ranks exchange data.
#pragma once

#include <cstdint>

#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

// Bytes per second that a rank sends to the next one while all ranks reduce `num_elems` gradients,
// or 64 MiB of them if they are more; the best of a few measurements, or 0 for a rank alone. A
// collective call. The group keeps the memory.
double MeasureLink(ProcessGroup& group, Stream& stream, DType dtype, int64_t num_elems);

}  // namespace dsat::engine
