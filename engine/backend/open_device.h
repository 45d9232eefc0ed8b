// The device that a run asks for.
#ifndef DSAT_ENGINE_BACKEND_OPEN_DEVICE_H_
#define DSAT_ENGINE_BACKEND_OPEN_DEVICE_H_

#include <memory>
#include <string>

#include "engine/backend/device.h"

namespace dsat::engine {

// `name` is "cpu", "cuda" or "auto": a GPU if this machine has one that can be used, else the
// processor. GPUs go to ranks by `local_rank`, in turn. Throws kInvalidArgument for another name,
// kUnavailable saying why there is no GPU if "cuda" is asked for.
std::unique_ptr<Device> OpenDevice(const std::string& name, int local_rank, int num_threads);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_OPEN_DEVICE_H_
