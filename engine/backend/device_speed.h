// Measures how fast a device computes and copies, and how fast ranks exchange data.
#pragma once

#include <cstdint>

#include "engine/core/tensor.h"

namespace dsat::engine {

class Arena;
class Kernels;
class ProcessGroup;
class Stream;

// Each number is the best of a few measurements; 0 if there is too little memory to measure.
struct DeviceSpeed {
  double matmul_flops = 0;  // FLOP/s of a multiplication of large square matrices.
  double copy = 0;          // Bytes per second, copied within the device's memory.
  double to_device = 0;     // Bytes per second, copied from separate host memory.
  double to_host = 0;       // Bytes per second, copied to separate host memory.
};

// Multiplies matrices of `dtype` and copies blocks that are large enough to measure, as far as the
// free memory of both arenas allows. Takes a few tenths of a second. Throws OutOfMemory if there is
// less memory than the limits of the arenas.
DeviceSpeed MeasureDeviceSpeed(Kernels& kernels, Arena& device, Arena& host, DType dtype);

// Bytes per second that a rank sends to the next one while all ranks reduce `num_elems` gradients,
// or 64 MiB of them if they are more; the best of a few measurements, or 0 for a rank alone. A
// collective call. The group keeps the memory.
double MeasureLink(ProcessGroup& group, Stream& stream, DType dtype, int64_t num_elems);

}  // namespace dsat::engine
