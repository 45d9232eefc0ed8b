// Sorts instructions into those of the device and those of the host.
#ifndef DSAT_ENGINE_RUNTIME_ASKS_DEVICE_H_
#define DSAT_ENGINE_RUNTIME_ASKS_DEVICE_H_

#include "engine/plan/plan.h"

namespace dsat::engine {

// Whether the device does something for the instruction, on the stream of the thread that runs it.
bool AsksDevice(const Instruction& i, const Plan& plan);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_ASKS_DEVICE_H_
