// How fast a device computes and copies, measured in a moment.
#ifndef DSAT_ENGINE_BACKEND_DEVICE_SPEED_H_
#define DSAT_ENGINE_BACKEND_DEVICE_SPEED_H_

#include "engine/core/tensor.h"

namespace dsat::engine {

class Arena;
class Kernels;

// The best of a few tries each; 0 if the memory was too small to tell.
struct DeviceSpeed {
  double matmul_flops = 0;  // FLOP/s of a product of large square matrices.
  double copy = 0;          // Bytes copied a second within the device's memory.
  double to_device = 0;     // Bytes copied a second to it from the host's, if that is another,
  double to_host = 0;       // and back.
};

// Multiplies matrices of `dtype` and copies blocks, as large as tells and as what is left of both
// arenas allows. Takes a few tenths of a second. Throws OutOfMemory if there is less memory than
// the arenas say.
DeviceSpeed MeasureDeviceSpeed(Kernels& kernels, Arena& device, Arena& host, DType dtype);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_DEVICE_SPEED_H_
