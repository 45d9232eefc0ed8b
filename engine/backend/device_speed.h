// Measures how fast a device computes and copies.
#pragma once

#include "engine/core/tensor.h"

namespace dsat::engine {

class Arena;
class Kernels;

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

}  // namespace dsat::engine
