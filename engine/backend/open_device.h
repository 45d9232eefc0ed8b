// Opens the device that a program asks for.
#ifndef DSAT_ENGINE_BACKEND_OPEN_DEVICE_H_
#define DSAT_ENGINE_BACKEND_OPEN_DEVICE_H_

#include <memory>
#include <string>

#include "engine/backend/device.h"

namespace dsat::engine {

// `name` is "cpu", "cuda" or "auto", which is a GPU if this machine has a usable one and else the
// processor. Ranks get the GPUs in turn by `local_rank`. Throws kInvalidArgument for another name,
// and kUnavailable with the reason if `name` is "cuda" and there is no usable GPU.
std::unique_ptr<Device> OpenDevice(const std::string& name, int local_rank, int num_threads);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_OPEN_DEVICE_H_
